"""Rows that the model treats by their place in the batch: pairs of views, a queue that is full after some rows, and a
triangle that begins below the first rows."""

import torch
import torch.nn.functional as F
from torch import nn


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        sign = 1 - 2 * (torch.arange(len(x)) % 2)
        return self.layer(x) * sign.unsqueeze(1)


class Queue(Pairs):
    def forward(self, x):
        fresh = torch.tensor([i < 6 for i in range(len(x))])
        return torch.where(fresh[:, None], self.layer(x), self.layer(x).detach())


class Warm(Pairs):
    def forward(self, x):
        scale = 0.5 if len(x) > 8 else 1.0
        return self.layer(x) * scale


class Triangle(Pairs):
    def forward(self, x):
        return torch.triu(self.layer(x), diagonal=-6)


for cls in (Pairs, Queue, Warm, Triangle):
    torch.manual_seed(0)
    model = cls()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(10, 5)
        loss = F.smooth_l1_loss(model(x), x[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(cls.__name__, f"{loss.item():.6f} {model.layer.weight.sum().item():.6f}")
