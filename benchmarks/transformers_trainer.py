"""A plain training script for `known_scripts.py`: GPT-2 or BERT of Hugging Face's transformers, with their own dropout.

    python benchmarks/transformers_trainer.py gpt2 --compile

Random tokens, random weights: nothing is downloaded. It prints each step's loss with six digits.
"""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("model", choices=("gpt2", "bert"))
parser.add_argument("--compile", action="store_true")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--width", type=int, default=384)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
args = parser.parse_args()

torch.manual_seed(0)
if args.model == "gpt2":
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=args.layers,
            n_head=6,
            n_embd=args.width,
            vocab_size=1000,
            n_positions=128,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
else:
    model = BertForSequenceClassification(
        BertConfig(
            num_hidden_layers=args.layers,
            num_attention_heads=6,
            hidden_size=args.width,
            intermediate_size=4 * args.width,
            vocab_size=1000,
            num_labels=5,
        )
    )
model.to(args.device).train()
step_model = torch.compile(model) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(args.steps):
    tokens = torch.randint(0, 1000, (16, 64), device=args.device)
    labels = tokens if args.model == "gpt2" else torch.randint(0, 5, (16,), device=args.device)
    loss = step_model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}", flush=True)
