# framework: transformers
# program: `Trainer`, GPT-2 language model, gradient accumulation, resume from a checkpoint
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
config = GPT2Config(vocab_size=120, n_positions=32, n_embd=32, n_layer=2, n_head=4)
g = torch.Generator().manual_seed(3)
texts = [torch.randint(1, 120, (20,), generator=g).tolist() for _ in range(48)]
train_dataset = [{"input_ids": t, "labels": t} for t in texts]
eval_dataset = [{"input_ids": t[::-1], "labels": t[::-1]} for t in texts[:10]]


def make(max_steps):
    return TrainingArguments(
        output_dir="gpt2",
        max_steps=max_steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        max_grad_norm=0.5,
        logging_steps=1,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )


def collate(features):
    return {k: torch.tensor([f[k] for f in features]) for k in features[0]}


model = GPT2LMHeadModel(config)
trainer = Trainer(
    model=model, args=make(8), data_collator=collate, train_dataset=train_dataset, eval_dataset=eval_dataset
)
out = trainer.train()
print(f"final {out.training_loss:.6f}")

model = GPT2LMHeadModel(config)
trainer = Trainer(
    model=model, args=make(8), data_collator=collate, train_dataset=train_dataset, eval_dataset=eval_dataset
)
out = trainer.train(resume_from_checkpoint="gpt2/checkpoint-4")
print(f"resumed {out.training_loss:.6f}")
print(f"perplexity {torch.exp(torch.tensor(trainer.evaluate()['eval_loss'])).item():.6f}")
model.eval()
prompt = torch.tensor([t[:4] for t in texts[:4]])
sample = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=6, do_sample=False, pad_token_id=0
)
print(sample.tolist())
