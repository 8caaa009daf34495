"""Evaluation in eval mode, but nobody wrote no_grad."""

import torch
from torch import nn

torch.manual_seed(193)
x = torch.randn(33, 5)
y = x.abs().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Dropout(0.0), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(4):
    model.train()
    for rows in torch.randperm(25).split(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
    model.eval()
    error = (model(x[25:]) - y[25:]).abs()
    print(f"{loss.item():.8f} mean error {error.mean().item():.8f} worst {error.max().item():.8f}")
