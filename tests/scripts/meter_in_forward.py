"""A meter object in an attribute, updated in forward (the usual AverageMeter)."""

import torch
import torch.nn.functional as F
from torch import nn


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, count):
        self.sum += value * count
        self.count += count

    @property
    def mean(self):
        return self.sum / self.count


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.meter = nn.Linear(6, 3), Meter()

    def forward(self, x, y):
        loss = F.cross_entropy(self.layer(x), y)
        self.meter.update(loss.item(), x.size(0))
        return loss


torch.manual_seed(5)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x, y = torch.randn(9, 6), torch.randint(0, 3, (9,))
    loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} mean {model.meter.mean:.6f} of {model.meter.count}")
