"""Sharpness-aware minimisation: climb, second gradient, step back, step."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(135)
x = torch.randn(32, 5)
loader = DataLoader(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long()), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        with torch.no_grad():
            climbs = [0.05 * p.grad / norm for p in model.parameters()]
            for p, e in zip(model.parameters(), climbs):
                p.add_(e)
        optimizer.zero_grad()
        sharp = nn.functional.cross_entropy(model(a), b)
        sharp.backward()
        with torch.no_grad():
            for p, e in zip(model.parameters(), climbs):
                p.sub_(e)
        optimizer.step()
        optimizer.zero_grad()
        print(f"{loss.item():.8f} {sharp.item():.8f} {norm.item():.8f}")
