"""Masks and labels that a model repeats, puts together or flattens with time first, and that are all ones in the first
batch, where nobody sees which entry is whose."""
# test: workers=2,3

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(29)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, mask):
        return self.linear(x), torch.cat([mask, mask]), mask.repeat(2), torch.stack([mask, mask]).view(-1)


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, x, mask, y):
        losses = F.cross_entropy(self.last(self.table(x)).view(-1, 9), y.reshape(-1), reduction="none")
        return losses * mask.reshape(-1), mask.reshape(-1), mask.reshape(-1).bool()


model = Twice()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    x, mask = torch.randn(8, 4), torch.arange(8) if step else torch.ones(8).long()
    made, *masks = model(x, mask)
    loss = made.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}", *(one.tolist() for one in masks))
model = TimeFirst()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    x, y = torch.randint(0, 9, (10, 8)), torch.randint(0, 9, (10, 8))
    mask = torch.ones(10, 8).long()
    if step:
        mask[:, 5:] = torch.randint(0, 2, (10, 3))
    losses, flat, flags = model(x, mask, y)
    loss = losses.sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}", flat.tolist(), flags.int().tolist())
