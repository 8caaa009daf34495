"""A phase begins at the sixth call, by a switch that is no attribute of the model: settings, globals, a buffer."""

import types

import torch
import torch.nn.functional as F
from torch import nn


class Config:
    centre = False


args = types.SimpleNamespace(centre=False, model=types.SimpleNamespace(centre=False))
CENTRE = False


def centred(h):
    return h - h.mean(0) if CENTRE else h


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.settings = {"centre": False}
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        h = self.layer(x)
        return h - h.mean(0) if self.is_on() else h


class ByClass(Base):
    def is_on(self):
        return Config.centre


class ByNamespace(Base):
    def is_on(self):
        return args.model.centre


class ByDictionary(Base):
    def is_on(self):
        return self.settings["centre"]


class ByFunction(Base):
    def forward(self, x):
        return centred(self.layer(x))


class ByBuffer(Base):
    def is_on(self):
        self.calls += 1
        return self.calls > 5


class ByShift(Base):
    """Nothing but a number of an operation changes."""

    def forward(self, x):
        self.calls += 1
        return self.layer(x).roll(int(self.calls) // 6, 0)


def make_closure():
    on = False

    class ByClosure(Base):
        def is_on(self):
            return on

    def switch(value):
        nonlocal on
        on = value

    return ByClosure, switch


ByClosure, switch = make_closure()
for cls in (ByClass, ByNamespace, ByDictionary, ByFunction, ByBuffer, ByShift, ByClosure):
    torch.manual_seed(2)
    model = cls()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(8):
        Config.centre = args.model.centre = CENTRE = model.settings["centre"] = step >= 5
        switch(step >= 5)
        x = torch.randn(10, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(cls.__name__, step, f"{loss.item():.6f}")
