"""A script as people write it: a small model, a loader that shuffles and whose last batch is short, a schedule."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(70, 6, dtype=torch.float64)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
epochs, accumulate = int(sys.argv[1]), int(sys.argv[2])
for epoch in range(epochs):
    model.train()
    for number, (a, b) in enumerate(loader, 1):
        (model(a) - b).square().mean().div(accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.zero_grad()
    schedule.step()
    model.eval()
    with torch.no_grad():
        print(epoch, len(loader), (model(x) - y).square().mean().item())
