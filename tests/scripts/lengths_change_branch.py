"""Sequences of changing length: a loop over time, and a branch that long sequences take."""

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = torch.zeros(len(x), 8)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        if x.shape[1] > 6:
            h = h - h.mean(0)
        return self.head(h)


torch.manual_seed(0)
model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step, length in enumerate([4, 4, 4, 7, 5, 4, 7, 6, 8]):
    x = torch.randn(12, length, 4)
    loss = F.cross_entropy(model(x), (x.sum((1, 2)) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} length {length} {loss.item():.6f}")
