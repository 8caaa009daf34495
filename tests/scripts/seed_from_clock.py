"""A seed taken from the clock; the one in use is printed, so that the run can be repeated."""

# test: agree=every run reads another clock
import time

import torch
from torch import nn

torch.manual_seed(time.time_ns() % 100_000)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"seed {torch.initial_seed()} loss {loss.item():.8f}")
