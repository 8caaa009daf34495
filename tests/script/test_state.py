"""What a call changes is put back, wherever it lies: before a call is made again, and after a trial."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.script.proof.surroundings import State

TOTAL = torch.zeros(2)
LOG: list[float] = []
COUNT = itertools.count()
RNG = np.random.default_rng(0)


class Meter:
    __slots__ = ("seen", "values")

    def __init__(self) -> None:
        self.seen, self.values = 0, deque([1.0], maxlen=3)


class Odd(nn.Module):
    """Changes each thing that `state` tells of, at each call."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.count, self.items = itertools.count(), iter([3, 4, 5, 6])
        self.meter, self.deep = Meter(), SimpleNamespace(count=itertools.count(), steps=[{"n": 0}])
        self.numbers, self.mean = np.zeros(2), torch.zeros(2)
        self.python, self.torch = random.Random(0), torch.Generator()
        self.state: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).calls += 1
        y = self.norm(self.layer(x))
        step = next(self.count) + next(self.items) + next(self.deep.count) + next(COUNT)
        self.meter.seen += len(x)
        self.meter.values.append(float(step))
        self.deep.steps[0]["n"] += 1
        self.deep.steps.append({"n": 9})
        self.numbers += 1
        self.mean.mul_(0.5).add_(y.detach().mean(0))
        TOTAL.add_(1)
        LOG.append(self.python.random() + float(RNG.random()) + random.random())
        self.state, self.new = y, torch.rand(2, generator=self.torch)
        return y * step


def told(module: Odd) -> list[Any]:
    """All that a call changes; the counters are looked at, and not moved."""
    counters = [module.count, module.items, module.deep.count, COUNT]
    return [
        *(repr(counter.__reduce__()) for counter in counters),
        (Odd.calls, module.meter.seen, list(module.meter.values), repr(module.deep.steps)),
        (module.numbers.tolist(), module.mean.tolist(), TOTAL.tolist(), list(LOG)),
        (module.python.getstate(), repr(RNG.bit_generator.state), random.getstate()),
        (module.torch.get_state().tolist(), module.state is None, hasattr(module, "new")),
        [buffer.tolist() for buffer in module.buffers()],
    ]


def test_what_a_call_changes_is_put_back_as_often_as_asked() -> None:
    module, x = Odd(), torch.randn(4, 2)
    before, state = told(module), State(module)
    first = module(x)
    assert not any(a == b for a, b in zip(told(module), before, strict=True))
    for _ in range(2):
        state.put_back()
        assert told(module) == before
        assert torch.equal(module(x), first)


def test_objects_and_containers_stay_the_same_ones() -> None:
    module = Odd()
    held = [module.meter, module.meter.values, module.deep.steps, module.numbers, module.mean, LOG]
    state = State(module)
    module(torch.randn(4, 2))
    state.put_back()
    now = [module.meter, module.meter.values, module.deep.steps, module.numbers, module.mean, LOG]
    assert all(a is b for a, b in zip(held, now, strict=True))


def test_what_is_kept_keeps_no_graph() -> None:
    module: Any = nn.Linear(2, 2)
    module.kept = module(torch.randn(3, 2))
    numbers, graph, state = module.kept.tolist(), weakref.ref(module.kept), State(module)
    module.kept = None
    gc.collect()
    assert graph() is None
    state.put_back()
    assert module.kept.tolist() == numbers
