"""Settings and outputs are dictionaries of the script's own classes, which stay as they are."""

import torch
import torch.nn.functional as F
from torch import nn


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Log(list):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def add(self, value):
        self.append(value)


config = Config(rate=0.2, hidden=8, steps=6, optim=Config(momentum=0.9, nesterov=True))
log = Log("train")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, config.hidden), nn.Tanh(), nn.Linear(config.hidden, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=config.rate, **config.optim)
for step in range(config.steps):
    x = torch.randn(12, 4)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.add(round(loss.item(), 6))
    config.best = min(config.get("best", 9.0), log[-1])
    print(log.name, step, log, sorted(config), config.optim.momentum)
