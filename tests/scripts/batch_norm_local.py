"""Batch norm over slices, as under DDP."""

# test: options=--mod bn=local
# test: different=batch norm sees its slice, as under DDP
import torch
from torch import nn

torch.manual_seed(60)
x = torch.randn(32, 6) * 2 + 1
y = (x[:, 0] > x[:, 1]).long()
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
first = None
for step in range(30):
    loss = nn.functional.cross_entropy(model(x), y)
    first = first or loss.item()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"loss {loss.item():.8f}")
print("learned", loss.item() < first / 2)
model.eval()
print(f"eval {nn.functional.cross_entropy(model(x), y).item():.8f} mean {model[1].running_mean.mean().item():.8f}")
