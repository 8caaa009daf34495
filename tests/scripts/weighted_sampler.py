"""Balancing rare classes with WeightedRandomSampler."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(25)
y = (torch.rand(64) < 0.15).long()
x = torch.randn(64, 4) + y[:, None] * 1.5
counts = torch.bincount(y, minlength=2)
sampler = WeightedRandomSampler((1.0 / counts)[y], num_samples=64)
loader = DataLoader(TensorDataset(x, y), batch_size=10, sampler=sampler)
model = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for epoch in range(3):
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
