"""Samples fed one at a time without a batch dimension: a vector goes in, and its first dimension is features."""

import torch
from torch import nn

torch.manual_seed(159)
x = torch.randn(16, 4)
y = x.sum(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    total = 0.0
    for xi, yi in zip(x, y):
        loss = (model(xi) - yi).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"{epoch} {total / 16:.8f}")
