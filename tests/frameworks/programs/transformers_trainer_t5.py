# framework: transformers
# program: `Seq2SeqTrainer`, T5, `predict_with_generate`
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import numpy as np
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration, set_seed

set_seed(7)
config = T5Config(
    vocab_size=64,
    d_model=32,
    d_kv=8,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)
model = T5ForConditionalGeneration(config)

rng = np.random.default_rng(0)


def make(n):
    rows = []
    for _ in range(n):
        length = rng.integers(4, 12)
        src = rng.integers(2, 64, size=length).tolist()
        rows.append({"input_ids": src, "labels": src[::-1][:6] + [1]})
    return rows


def collator(features):
    n = max(len(f["input_ids"]) for f in features)
    m = max(len(f["labels"]) for f in features)
    ids = [f["input_ids"] + [0] * (n - len(f["input_ids"])) for f in features]
    mask = [[1] * len(f["input_ids"]) + [0] * (n - len(f["input_ids"])) for f in features]
    labels = [f["labels"] + [-100] * (m - len(f["labels"])) for f in features]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(labels)}


def compute_metrics(pred):
    preds = pred.predictions
    return {
        "gen_len": float(np.mean([np.count_nonzero(p > 1) for p in preds])),
        "tokens": int(np.sum(np.where(preds < 0, 0, preds))),
    }


args = Seq2SeqTrainingArguments(
    output_dir="t5",
    num_train_epochs=2,
    per_device_train_batch_size=6,
    per_device_eval_batch_size=5,
    learning_rate=3e-3,
    optim="adafactor",
    predict_with_generate=True,
    generation_max_length=8,
    eval_strategy="epoch",
    save_strategy="no",
    logging_steps=3,
    disable_tqdm=True,
    report_to=[],
    use_cpu=True,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    data_collator=collator,
    train_dataset=make(40),
    eval_dataset=make(12),
    compute_metrics=compute_metrics,
)
print(f"loss {trainer.train().training_loss:.6f}")
print({k: round(v, 5) for k, v in trainer.evaluate().items() if "runtime" not in k and "second" not in k})
