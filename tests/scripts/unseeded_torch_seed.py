"""torch.seed() and random.seed() ask the operating system for a seed; a torch.Generator is seeded from it."""

# test: agree-or-refused=generators that are seeded by the operating system
import random

import torch
from torch import nn

torch.seed()
random.seed()
generator = torch.Generator()
generator.seed()
x = torch.randn(30, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    rows = torch.randperm(30, generator=generator)[: 5 + random.randrange(5)]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
