# framework: peft
# program: LoRA on a BERT classifier, plain loop, `modules_to_save`, merged model
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=3
    )
)
model = get_peft_model(
    model,
    LoraConfig(
        task_type="SEQ_CLS", r=8, lora_dropout=0.05, target_modules=["query", "value"], modules_to_save=["classifier"]
    ),
)
ids, labels = torch.randint(0, 60, (72, 12)), torch.randint(0, 3, (72,))
loader = DataLoader(TensorDataset(ids, labels), batch_size=12, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
for epoch in range(3):
    model.train()
    for x, y in loader:
        out = model(input_ids=x, labels=y)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: {out.loss.item():.6f}")
model.eval()
with torch.no_grad():
    before = model(input_ids=ids).logits
    with model.disable_adapter():
        without = model(input_ids=ids).logits
merged = model.merge_and_unload()
with torch.no_grad():
    after = merged(input_ids=ids).logits
print(
    f"acc {(before.argmax(1) == labels).float().mean().item():.6f} {before.std().item():.6f} {without.std().item():.6f} {after.std().item():.6f}"
)
