"""An exponential moving average of the weights in a deep copy, evaluated beside the model."""

# test: views=batch,slice
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(116)
x = torch.randn(36, 5)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 1))
average = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(4):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for e, p in zip(average.parameters(), model.parameters()):
                e.mul_(0.9).add_(p, alpha=0.1)
    with torch.no_grad():
        print(
            f"{loss.item():.8f} model {nn.functional.mse_loss(model(x), y).item():.8f} average {nn.functional.mse_loss(average(x), y).item():.8f}"
        )
