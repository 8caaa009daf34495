"""A learning rate that depends on the process: every worker would train a model of its own, with the same losses."""

# test: refused=The workers' weights differ
import math
import os

import torch
from torch import nn

torch.manual_seed(301)
x = torch.randn(24, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.05 * math.sin(os.getpid()))
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
