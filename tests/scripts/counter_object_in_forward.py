"""forward counts its calls with itertools.count, and divides the loss by the count."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), itertools.count(1)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x), y) / next(self.calls)


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f}")
