# framework: transformers
# program: `Trainer`, BERT classifier with default dropout, evaluation each epoch
# mask: '\w*(runtime|per_second)': '?[\d.e+-]+'?
import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

set_seed(42)


class SentimentDataset(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.input_ids = torch.randint(5, 200, (n, 24), generator=g)
        lengths = torch.randint(8, 25, (n,), generator=g)
        self.attention_mask = (torch.arange(24)[None] < lengths[:, None]).long()
        self.input_ids = self.input_ids * self.attention_mask
        self.labels = (self.input_ids[:, 0] > 100).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {
            "input_ids": self.input_ids[i],
            "attention_mask": self.attention_mask[i],
            "labels": self.labels[i],
        }


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    preds = np.argmax(logits, axis=-1)
    return {"accuracy": float((preds == labels).mean()), "mean_logit": float(np.mean(logits[:, 0]))}


config = BertConfig(
    vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, num_labels=2
)
model = BertForSequenceClassification(config)

args = TrainingArguments(
    output_dir="out",
    num_train_epochs=2,
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    learning_rate=5e-4,
    weight_decay=0.01,
    warmup_steps=4,
    eval_strategy="epoch",
    save_strategy="epoch",
    load_best_model_at_end=True,
    logging_steps=2,
    disable_tqdm=True,
    report_to=[],
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=SentimentDataset(60, 0),
    eval_dataset=SentimentDataset(33, 1),
    compute_metrics=compute_metrics,
)
result = trainer.train()
print(f"train loss {result.training_loss:.6f}")
metrics = trainer.evaluate()
print(f"eval loss {metrics['eval_loss']:.6f} accuracy {metrics['eval_accuracy']:.6f}")
predictions = trainer.predict(SentimentDataset(10, 2))
print("predictions", np.round(predictions.predictions, 5).tolist())
