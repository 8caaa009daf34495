"""Random states saved, restored and forked by the script; seeds set again each epoch."""

import random

import numpy as np
import torch
from torch import nn

torch.manual_seed(224)
np.random.seed(224)
random.seed(224)
x = torch.randn(22, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = torch.get_rng_state()
for epoch in range(4):
    if epoch == 2:
        torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.manual_seed(epoch)
        noise = torch.randn(22, 4) * 0.1
    rows = torch.randperm(22)[: 8 + random.randrange(3)]
    loss = nn.functional.mse_loss(model(x[rows] + noise[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        f"{loss.item():.8f} {torch.rand(()).item():.8f} {np.random.rand():.8f} {random.random():.8f} {torch.initial_seed()}"
    )
