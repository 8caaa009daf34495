"""A model that adds noise from numpy's global stream and drops words by Python's random, row by row."""

import random

import numpy as np
import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        if self.training:
            x = x + torch.from_numpy(np.random.normal(0, 0.1, size=x.shape)).float()
        h = torch.relu(self.fc(x))
        if self.training:
            h = h * torch.from_numpy((np.random.rand(*h.shape) < 0.9).astype(np.float32))
        return self.out(h)


random.seed(5)
np.random.seed(5)
torch.manual_seed(405)
x = torch.randn(33, 4)
y = x.sum(1, keepdim=True)
model = Noisy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.from_numpy(np.random.permutation(33)[:13])
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {random.random():.8f} {np.random.rand():.8f}")
model.eval()
print(f"{nn.functional.mse_loss(model(x), y).item():.8f}")
