# framework: accelerate
# program: `Accelerator.prepare`, gradient accumulation, `gather_for_metrics`, `save_state` and `load_state`
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(3)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
X = torch.randn(120, 10)
Y = (X[:, :3].sum(1) > 0).long()
train_dl = DataLoader(TensorDataset(X[:96], Y[:96]), batch_size=16, shuffle=True)
eval_dl = DataLoader(TensorDataset(X[96:], Y[96:]), batch_size=10)
model = nn.Sequential(nn.Linear(10, 32, bias=False), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20)
model, optimizer, train_dl, eval_dl, scheduler = accelerator.prepare(model, optimizer, train_dl, eval_dl, scheduler)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(3):
    model.train()
    total_loss = 0
    for step, (x, y) in enumerate(train_dl):
        with accelerator.accumulate(model):
            loss = loss_fn(model(x), y)
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    correct = count = 0
    for x, y in eval_dl:
        with torch.no_grad():
            predictions = model(x).argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, y))
        correct += (predictions == references).sum().item()
        count += len(references)
    accelerator.print(f"epoch {epoch}: loss {total_loss.item() / len(train_dl):.6f} accuracy {correct / count:.6f}")
    if epoch == 1:
        accelerator.save_state("checkpoint")
accelerator.load_state("checkpoint")
unwrapped = accelerator.unwrap_model(model)
print(f"weights {unwrapped[-1].weight.norm().item():.6f}")
print(f"process {accelerator.process_index} of {accelerator.num_processes}, main {accelerator.is_main_process}")
