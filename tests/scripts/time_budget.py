"""Trains for a fraction of a second: workers that look at their own clocks would stop at different steps."""

# test: agree=how far it comes depends on the machine
import time

import torch
from torch import nn

torch.manual_seed(199)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps, start = 0, time.time()
while time.time() - start < 0.3:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
print(f"{steps} steps, loss {loss.item():.8f}")
