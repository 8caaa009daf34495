# framework: transformers
# program: plain loop, GPT-2 with default dropout and caches, sampling with `generate`
import math

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(1234)
config = GPT2Config(
    vocab_size=100, n_positions=48, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=99, pad_token_id=0
)
model = GPT2LMHeadModel(config)
data = torch.randint(1, 99, (64, 25))
train = DataLoader(TensorDataset(data[:56]), batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(data[56:]), batch_size=8)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))

step = 0
for epoch in range(2):
    model.train()
    for (ids,) in train:
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 2 == 0:
            print(f"step {step} | loss {loss.item():.6f} | norm {norm:.6f}")
    model.eval()
    with torch.no_grad():
        losses = [model(ids, labels=ids).loss.item() for (ids,) in valid]
    print(f"valid ppl {math.exp(sum(losses) / len(losses)):.6f}")
    out = model.generate(data[:3, :5], do_sample=True, top_k=20, max_new_tokens=10)
    for row in out:
        print(row.tolist())
beams = model.generate(data[:2, :5], num_beams=3, max_new_tokens=8)
print(beams.tolist())
