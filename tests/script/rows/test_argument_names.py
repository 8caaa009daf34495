"""numpy's names of arguments, and the first tensor by its name: the same numbers as in one process, and functions that
are known still gather nothing."""

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

INDEX = torch.tensor([[1], [0], [2], [3], [1], [0], [2]])
# Functions that give rows again.
ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "stack(axis=1)": lambda y: torch.stack([y, 2 * y], axis=1),
    "stack(axis=-1)": lambda y: torch.stack([y, 2 * y], axis=-1),
    "stack(axis=0)": lambda y: torch.stack([y, 2 * y], axis=0),
    "stack(tensors=, axis=2)": lambda y: torch.stack(tensors=[y, 2 * y], axis=2),
    "concatenate(axis=1)": lambda y: torch.concatenate([y, 2 * y], axis=1),
    "sum(axis=1, keepdims)": lambda y: torch.sum(y, axis=1, keepdims=True),
    ".mean(axis=1)": lambda y: y.mean(axis=1),
    "softmax(axis=1)": lambda y: torch.softmax(y, axis=1),
    ".argmax(axis=1)": lambda y: y.argmax(axis=1),
    ".sort(axis=1)": lambda y: y.sort(axis=1).values,
    "sum(x=, axis=1)": lambda y: torch.sum(x=y, axis=1),
    "sum(a=, axis=1)": lambda y: torch.sum(a=y, axis=1),
    "add(x1=, x2=)": lambda y: torch.add(x1=y, x2=y),
    "matmul(x1=, x2=)": lambda y: torch.matmul(x1=y, x2=torch.ones(4, 2)),
    "vector_norm(x=, axis=1)": lambda y: torch.linalg.vector_norm(x=y, axis=1),
    "unsqueeze(axis=1)": lambda y: torch.unsqueeze(y, axis=1),
    "transpose(input=)": lambda y: torch.transpose(input=y, dim0=0, dim1=1),
    "flatten(x=)": lambda y: torch.flatten(x=y, start_dim=1),
    "where(condition=, input=)": lambda y: torch.where(condition=y > 0, input=y, other=-y),
    "normalize(input=)": lambda y: F.normalize(input=y, dim=1),
    "layer_norm(input=)": lambda y: F.layer_norm(input=y, normalized_shape=(4,)),
    "cosine_similarity(x1=, x2=)": lambda y: F.cosine_similarity(x1=y, x2=2 * y + 1),
    "cat(axis=0)": lambda y: torch.cat([y, 2 * y], axis=0),
    "gather(axis=1)": lambda y: torch.gather(y, axis=1, index=INDEX),
    "trapezoid(x=)": lambda y: torch.trapezoid(y, x=y.abs().cumsum(1)),
}
# Reductions over the rows, and functions that gather them.
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshape(input=, shape=)": lambda y: torch.reshape(input=y, shape=(7, 2, 2)),
    "sum(axis=0)": lambda y: torch.sum(y, axis=0),
    ".mean(axis=(0, 1), keepdims)": lambda y: y.mean(axis=(0, 1), keepdims=True),
    ".std(axis=0)": lambda y: y.std(axis=0),
    "mse_loss(input=)": lambda y: F.mse_loss(input=y, target=torch.ones(7, 4)),
    "cdist(x1=, x2=)": lambda y: torch.cdist(x1=y, x2=y[:2]),
}
REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "F.softmax(axis=)": lambda y: F.softmax(y, axis=1),  # type: ignore[call-arg]
    "F.relu(x=)": lambda y: F.relu(x=y),  # type: ignore[call-arg]
    "dim and axis": lambda y: torch.sum(y, dim=1, axis=1),  # type: ignore[call-overload]
}
WAYS = ROWS | OTHERS


def told(name: str, model: nn.Module) -> tuple[torch.Tensor, bool]:
    x = torch.linspace(-1, 2, 21, dtype=torch.float32).view(7, 3).sin()
    made = WAYS[name](model(x))
    return made + 0, isinstance(made, Rows)


def on_worker(group: Group, name: str) -> tuple[torch.Tensor, bool]:
    with staged(group, gather_below=0):
        found, kept = told(name, seeded())
        return torch.tensor(found.tolist()), kept


def seeded() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(3, 4)


@pytest.mark.parametrize("name", WAYS)
def test_a_call_with_such_names_is_as_in_one_process(pool: Pools, name: str) -> None:
    expected, _ = told(name, seeded())
    for found, kept in pool(2).run(on_worker, name):
        torch.testing.assert_close(found, torch.tensor(expected.tolist()))
        assert kept == (name in ROWS)


def refused(group: Group, name: str) -> str:
    with staged(group, gather_below=0):
        try:
            REFUSED[name](seeded()(torch.ones(7, 3)))
        except TypeError as error:
            return str(error)
    return "nothing raised"


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_torch_refuses_is_refused(pool: Pools, name: str) -> None:
    with pytest.raises(TypeError) as caught:
        REFUSED[name](torch.ones(7, 4))
    assert pool(2).run(refused, name) == [str(caught.value)] * 2
