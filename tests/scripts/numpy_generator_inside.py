"""A model with a numpy generator of its own, and another that draws from the script's generator and Python's random."""

import random

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(8)
dice = random.Random(9)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng, self.fc = np.random.default_rng(7), nn.Linear(4, 8)

    def forward(self, x):
        return self.fc(x + torch.from_numpy(self.rng.normal(0, 0.1, size=tuple(x.shape))).float())


class Theirs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)

    def forward(self, x):
        scale = torch.tensor([[0.5 + dice.random()] for _ in range(len(x))])
        return self.fc(x * scale) + 0.1 * float(rng.random())


torch.manual_seed(406)
x = torch.randn(15, 4)
y = x.sum(1, keepdim=True)
body, head = Own(), Theirs()
split = nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters(), *split.parameters()], lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(head(body(x)) + split(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {rng.random():.8f} {dice.random():.8f}")
