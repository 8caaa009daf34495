"""Functions of torch that no table lists: the proof says what own rows suffice for, once for each kind of call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.group import Group
from paceline.script.rows.tensor import Rows

ROWS, WIDE = 14, 5
WEIGHT = torch.linspace(-1, 1, WIDE * 3, dtype=torch.float64).view(WIDE, 3)
OTHER = torch.linspace(0, 3, ROWS * WIDE, dtype=torch.float64).view(ROWS, WIDE).sin()
LABELS = torch.arange(ROWS) % WIDE
IGNORED = LABELS.where(torch.arange(ROWS) != 3, -100)
# Whether the output stays sharded, and the function.
FUNCTIONS: dict[str, tuple[bool, Callable[[torch.Tensor], torch.Tensor]]] = {
    "einsum": (True, lambda o: torch.einsum("bi,ij->bj", o, WEIGHT)),
    "a sum of outer products": (True, lambda o: o.T @ OTHER),
    "triplets": (True, lambda o: F.triplet_margin_loss(o, OTHER, OTHER.flip(0))),
    "distances to fixed points": (True, lambda o: torch.cdist(o, OTHER[:4])),
    "ignored targets": (True, lambda o: F.cross_entropy(o, IGNORED)),
    "smoothed labels": (True, lambda o: F.cross_entropy(o, IGNORED, label_smoothing=0.1)),
    "smoothed labels of weighted classes": (
        True,
        lambda o: F.cross_entropy(input=o, target=IGNORED, weight=WEIGHT[:, 0].abs() + 0.1, label_smoothing=0.1),
    ),
    "medians of rows": (True, lambda o: o.median(1).values),
    "both halves": (True, lambda o: torch.cat([o, o * 2], 0)),
    "spread of columns": (False, lambda o: o.std(0)),
    "batch norm": (False, lambda o: F.batch_norm(o, None, None, training=True)),
    "a triangle below the first rows": (False, lambda o: o.triu(-8)),
    "dropout": (False, lambda o: F.dropout(o, 0.5)),
    "a value of a sample": (False, lambda o: o * o[3, 0].item()),
}


def seeded() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(3, WIDE, dtype=torch.float64)


def played(name: str) -> tuple[list[float], list[float], bool]:
    """What the function gives, a gradient, and whether the output was sharded afterwards."""
    torch.manual_seed(5)
    model, x = seeded(), torch.linspace(-1, 2, ROWS * 3, dtype=torch.float64).view(ROWS, 3).sin()
    out = model(x)
    torch.manual_seed(7)
    made = FUNCTIONS[name][1](out)
    kept = isinstance(out, Rows)
    (made.sin().sum() + made.mean()).backward()
    grad: Any = next(model.parameters()).grad
    return made.detach().flatten().tolist(), grad.flatten().tolist(), kept


def on_worker(group: Group, name: str) -> tuple[list[float], list[float], bool]:
    with staged(group, gather_below=0):
        return played(name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_computed_on_own_rows_where_they_suffice(pool: Pools, name: str) -> None:
    values, grads, _ = played(name)
    for found, slopes, kept in pool(2).run(on_worker, name):
        assert found == pytest.approx(values, rel=1e-9, abs=1e-12)
        assert slopes == pytest.approx(grads, rel=1e-9, abs=1e-12)
        assert kept == FUNCTIONS[name][0]


def with_many_numbers(group: Group) -> tuple[list[float], int]:
    """A number among the arguments that is another one in each call, and the proofs that were made."""
    with staged(group, gather_below=0) as stage:
        model, x = seeded(), torch.ones(ROWS, 3, dtype=torch.float64)
        functions = stage.rows.functions
        found = [F.huber_loss(model(x), OTHER, delta=0.5 + step / 64).item() for step in range(8)]
        found += [model(x).roll(step, 1).square()[:, 0].mean().item() for step in range(60)]
        return found, sum(functions._proofs.values())


def test_proofs_end_where_each_call_has_another_number(pool: Pools) -> None:
    model, x = seeded(), torch.ones(ROWS, 3, dtype=torch.float64)
    expected = [F.huber_loss(model(x), OTHER, delta=0.5 + step / 64).item() for step in range(8)]
    expected += [model(x).roll(step, 1).square()[:, 0].mean().item() for step in range(60)]
    for found, proofs in pool(2).run(with_many_numbers):
        assert found == pytest.approx(expected, rel=1e-9)
        assert proofs < 70  # one for every delta, one for the mean, and those of roll until they are too many
