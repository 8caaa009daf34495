# framework: transformers
# program: plain loop, BERT for masked language modelling, padding, linear warm-up
import torch
from torch.optim import AdamW
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

torch.manual_seed(0)
config = BertConfig(vocab_size=150, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
model = BertForMaskedLM(config)
optimizer = AdamW(model.parameters(), lr=1e-3)

MASK, PAD = 1, 0
texts = [torch.randint(3, 150, (int(n),)) for n in torch.randint(6, 20, (50,))]


def mask_tokens(batch):
    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=PAD)
    attention = (ids != PAD).long()
    labels = ids.clone()
    probability = torch.full(labels.shape, 0.15) * attention
    masked = torch.bernoulli(probability).bool()
    labels[~masked] = -100
    ids[masked] = MASK
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}


loader = DataLoader(texts, batch_size=9, shuffle=True, collate_fn=mask_tokens)
epochs = 3
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=epochs * len(loader))
for epoch in range(epochs):
    model.train()
    total = 0.0
    for batch in loader:
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.6f} lr {scheduler.get_last_lr()[0]:.6e}")
model.eval()
correct = seen = 0
with torch.no_grad():
    for batch in loader:
        out = model(**batch, output_hidden_states=True)
        picked = batch["labels"] != -100
        correct += (out.logits.argmax(-1)[picked] == batch["labels"][picked]).sum().item()
        seen += picked.sum().item()
print(f"masked accuracy {correct}/{seen}, hidden {out.hidden_states[-1].abs().mean().item():.6f}")
