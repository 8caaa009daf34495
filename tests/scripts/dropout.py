"""Dropout in a sliced model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(201)
x = torch.randn(64, 6)
y = (x[:, 0] > x[:, 1]).long()
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
first = None
for epoch in range(10):
    model.train()
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.8f} next {torch.rand(()).item():.8f}")
model.eval()
with torch.no_grad():
    print("learned", (model(x).argmax(1) == y).float().mean().item() > 0.85, loss.item() < first)
