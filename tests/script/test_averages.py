"""Losses that a model returns: averages over the targets that count, from slices in which other numbers of them do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.script.slicing.loss_denominators import Averages

CLASSES = 4
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
# Targets of the batches of a run; -1 does not count. Uneven over slices, and otherwise at each batch.
BATCHES = [
    [0, 1, 2, 3, 0],
    [0, -1, -1, 1, 2],
    [-1, -1, -1, -1, 2],  # slices in which nothing counts
    [3, 3, -1, 0],
    [1],
    [2, 0],  # fewer rows than workers: a borrowed one does not count
]

Loss = Callable[[torch.Tensor, torch.Tensor], Any]


class Model(nn.Module):
    """Computes its own loss, as language models do."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)
        self.loss = loss

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.layer(x)
        return logits, self.loss(logits, targets)


class WithModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.criterion = nn.Linear(3, CLASSES), nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=-1)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.layer(x)
        return logits, self.criterion(logits, targets)


class Tokens(nn.Module):
    """Rows are sequences; the loss is over all their tokens, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.layer(torch.stack([x, x * 2], 1))
        both = torch.stack([targets, targets.roll(1) * 0 + 1], 1)
        return logits, F.cross_entropy(logits.view(-1, CLASSES), both.view(-1), ignore_index=-1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "padding is ignored": lambda: Model(lambda y, t: F.cross_entropy(y, t, ignore_index=-1)),
    "classes have weights": lambda: Model(lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS, ignore_index=-1)),
    "weights by position": lambda: Model(lambda y, t: F.cross_entropy(y, t, WEIGHTS, ignore_index=-1)),
    "labels are smoothed": lambda: Model(lambda y, t: F.cross_entropy(y, t, ignore_index=-1, label_smoothing=0.1)),
    "smoothed and weighted": lambda: Model(
        lambda y, t: F.cross_entropy(y, t, weight=WEIGHTS, ignore_index=-1, label_smoothing=0.1)
    ),
    "negative log likelihood": lambda: Model(lambda y, t: F.nll_loss(F.log_softmax(y, 1), t, ignore_index=-1)),
    "a module": WithModule,
    "tokens": Tokens,
    "a sum": lambda: Model(lambda y, t: F.cross_entropy(y, t, ignore_index=-1, reduction="sum")),
    "one a row": lambda: Model(lambda y, t: F.cross_entropy(y, t, ignore_index=-1, reduction="none")),
    "nothing is ignored": lambda: Model(lambda y, t: F.cross_entropy(y, t.clamp_min(0))),
    "another loss": lambda: Model(lambda y, t: F.mse_loss(y[:, 0], t.double())),
}


def trained(name: str, batches: list[list[int]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model, seen = MODELS[name]().double(), []
    for number, targets in enumerate(batches):
        x = torch.randn(len(targets), 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        model.zero_grad()
        logits, loss = model(x, torch.tensor(targets))
        loss.sum().backward()
        seen += [logits.detach(), loss.detach(), *(p.grad.clone() for p in model.parameters())]
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    return seen


def trained_in_slices(group: Group, name: str, batches: list[list[int]]) -> list[torch.Tensor]:
    with staged(group):
        return trained(name, batches)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_returned_loss_is_that_of_the_whole_batch(pool: Any, name: str, world: int) -> None:
    expected = trained(name, BATCHES)
    for found in pool(world).run(trained_in_slices, name, BATCHES):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11, msg=lambda m, i=i: f"number {i}: {m}")


@pytest.mark.parametrize("first", range(len(BATCHES)))
def test_whatever_the_first_batch_looked_like(pool: Any, first: int) -> None:
    """The proof is made on the first batch: what it cannot see there must still be right later."""
    batches = BATCHES[first:] + BATCHES[:first]
    expected = trained("padding is ignored", batches)
    for found in pool(2).run(trained_in_slices, "padding is ignored", batches):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


class Mixed(nn.Module):
    """Adds a penalty to its loss: then it is no average any more."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, CLASSES)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.layer(x)
        return F.cross_entropy(logits, targets, ignore_index=-1) + 0.1 * (logits**2).mean()


def mixed(batches: list[list[int]]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Mixed().double()
    return [
        model(torch.ones(len(t), 3, dtype=torch.float64) * (n + 1), torch.tensor(t)).detach()
        for n, t in enumerate(batches)
    ]


def mixed_in_slices(group: Group, batches: list[list[int]]) -> list[torch.Tensor]:
    with staged(group):
        return mixed(batches)


def test_a_sum_of_an_average_and_something_else_runs_whole_when_some_do_not_count(pool: Any) -> None:
    batches = [[0, 1, 2, 3], [0, -1, 2, 3]]
    for found in pool(2).run(mixed_in_slices, batches):
        for a, b in zip(found, mixed(batches), strict=True):
            torch.testing.assert_close(a, b)


def test_it_is_right_as_long_as_all_of_them_count(pool: Any) -> None:
    batches = [[0, 1, 2, 3], [3, 2, 1], [1]]
    expected = mixed(batches)
    for found in pool(2).run(mixed_in_slices, batches):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def nothing_counts(group: Group | None) -> torch.Tensor:
    torch.manual_seed(0)
    model = MODELS["padding is ignored"]().double()
    model(torch.ones(4, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3]))
    return model(torch.ones(4, 3, dtype=torch.float64), torch.tensor([-1] * 4))[1].detach()


def nothing_counts_in_slices(group: Group) -> torch.Tensor:
    with staged(group):
        return nothing_counts(group)


def test_an_average_over_nothing_is_no_number_as_on_one_process(pool: Any) -> None:
    assert nothing_counts(None).isnan()
    assert all(found.isnan() for found in pool(2).run(nothing_counts_in_slices))


def test_an_average_is_noted_once_under_a_default_device() -> None:
    """Torch then calls the function a second time, by its name."""
    with torch.device("cpu"), Averages().inside() as averages:
        F.cross_entropy(torch.randn(4, CLASSES), torch.tensor([0, 1, -100, 2]))
    assert averages.count == 1
