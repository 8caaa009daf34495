# framework: transformers
# program: plain loop, T5 with default dropout, beam search with `generate`
import torch
from torch.utils.data import DataLoader
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

torch.manual_seed(5)
config = T5Config(vocab_size=80, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
model = T5ForConditionalGeneration(config)
optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)


class Reverse(torch.utils.data.Dataset):
    def __init__(self, n):
        self.rows = [torch.randint(2, 80, (8,)) for _ in range(n)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {
            "source_ids": self.rows[i],
            "source_mask": torch.ones(8, dtype=torch.long),
            "target_ids": self.rows[i].flip(0),
        }


train_loader = DataLoader(Reverse(40), batch_size=8, shuffle=True, num_workers=0)
val_loader = DataLoader(Reverse(10), batch_size=4)
for epoch in range(3):
    model.train()
    for i, data in enumerate(train_loader):
        y = data["target_ids"]
        lm_labels = y.clone()
        lm_labels[y == 0] = -100
        outputs = model(input_ids=data["source_ids"], attention_mask=data["source_mask"], labels=lm_labels)
        loss = outputs[0]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: {epoch}, step {i}, Loss: {loss.item():.6f}")
    model.eval()
    predictions, actuals = [], []
    with torch.no_grad():
        for data in val_loader:
            generated = model.generate(
                input_ids=data["source_ids"],
                attention_mask=data["source_mask"],
                max_length=10,
                num_beams=2,
                repetition_penalty=2.5,
                length_penalty=1.0,
                early_stopping=True,
            )
            predictions.extend(generated.tolist())
            actuals.extend(data["target_ids"].tolist())
    hits = sum(p[1] == a[0] for p, a in zip(predictions, actuals))
    print(f"Epoch: {epoch}, hits {hits}/{len(actuals)}, first {predictions[0]}")
