"""Steps skipped when the loss or the gradients aren't finite; one poisoned batch. The poison is in one slice only."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(226)
x = torch.randn(40, 4)
x[17, 2] = float("nan")
y = x.nan_to_num().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
skipped = 0
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    loss = nn.functional.mse_loss(model(a), b)
    if not math.isfinite(loss.item()):
        skipped += 1
        print(f"step {step}: skipped, loss is nan")
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.8f}")
for p in model.parameters():
    assert torch.isfinite(p).all()
print("skipped", skipped)
