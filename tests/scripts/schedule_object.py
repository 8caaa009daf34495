"""A schedule object that forward advances: each call has a lower temperature."""

import torch
import torch.nn.functional as F
from torch import nn


class Schedule:
    def __init__(self):
        self.calls = 0

    def step(self):
        self.calls += 1
        return max(0.1, 1 - 0.05 * self.calls)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.schedule = nn.Linear(6, 3), Schedule()

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x) / self.schedule.step(), y)


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} calls {model.schedule.calls}")
