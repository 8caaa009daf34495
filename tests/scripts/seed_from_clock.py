"""A seed taken from the clock, printed so that the run can be repeated."""

# test: agree-or-refused=every worker reads its own clock
import time

import torch
from torch import nn

seed = time.time_ns() % 100_000
torch.manual_seed(seed)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"seed {seed} loss {loss.item():.8f}")
