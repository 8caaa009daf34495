"""Noise from the operating system, on gradients and in the order of samples; ids and a file that is named by one."""

# test: agree=the operating system gives every run other numbers
import random
import secrets
import uuid

import torch
from torch import nn

torch.manual_seed(304)
x = torch.randn(24, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
system, own = random.SystemRandom(), random.Random()
for step in range(5):
    rows = system.sample(range(24), 9)
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.grad += 0.01 * own.random() + 0.001 * secrets.randbelow(10)
    optimizer.step()
    print(f"{loss.item():.8f} {uuid.uuid4().int / 2**128:.8f}")
