"""Every function of torch, as torch's own tests call it, on a model's output that stays sharded: the value and the
gradient are those of one process, whether the function is known or gathers the rows."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pool import Pools
from staged import staged
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from paceline.comm.group import Group

# Memory that nobody wrote; samples whose order is that of a set; a sparse gradient that leaves a gathered output.
LEFT_OUT = ("empty", "meshgrid", "embedding")
SAMPLES = 5  # of each function
KINDS = (torch.float64, torch.int64, torch.bool)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.25, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def outcomes() -> Iterator[tuple[str, Any]]:
    """What is called, and its outcome: shapes, a number and a gradient, or the kind of its error."""
    from torch.testing._internal.common_methods_invocations import op_db

    model = Scaled()
    for op in op_db:
        if torch.float64 in op.dtypes and not any(name in op.name for name in LEFT_OUT):
            torch.manual_seed(0)
            given = op.sample_inputs("cpu", torch.float64, requires_grad=False)
            for number, sample in enumerate(itertools.islice(given, SAMPLES)):
                leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
                fitting = [i for i, leaf in enumerate(leaves) if _fits(leaf)]
                # Each argument, all of them, and the first one in the method and in place.
                ways = [(op.op, (i,)) for i in fitting] + [(op.op, tuple(fitting))] * (len(fitting) > 1)
                if isinstance(sample.input, torch.Tensor) and 0 in fitting:
                    ways += [(f, (0,)) for f in (op.method_variant, op.inplace_variant) if f is not None]
                for way, (f, sharded) in enumerate(ways):
                    torch.manual_seed(number)
                    made = [_of_model(model, leaf) if i in sharded else leaf for i, leaf in enumerate(leaves)]
                    x, args, kwargs = tree_unflatten(made, spec)
                    yield f"{op.name} {op.variant_test_name} {number} {way}", _outcome(f, model, x, args, kwargs)


def _fits(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.dtype not in KINDS:
        return False
    return leaf.dim() > 0 and leaf.shape[0] > 1 and leaf.numel() > 0


def _of_model(model: nn.Module, leaf: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(leaf.detach().double())
    if leaf.dtype is torch.bool:
        return out > 0.5
    return out if leaf.dtype is torch.float64 else (out / 1.25).round().long()


def _outcome(f: Any, model: nn.Module, x: Any, args: Any, kwargs: Any) -> Any:
    model.zero_grad()
    try:
        found = [leaf for leaf in tree_flatten(f(x, *args, **kwargs))[0] if isinstance(leaf, torch.Tensor)]
        total = sum((_digest(leaf) for leaf in found), torch.zeros((), dtype=torch.float64))
        if total.requires_grad:
            total.backward()
    except Exception as error:
        return type(error).__name__
    grad = next(model.parameters()).grad
    return [tuple(leaf.shape) for leaf in found], total.item(), 0.0 if grad is None else grad.item()


def _digest(leaf: torch.Tensor) -> torch.Tensor:
    leaf = leaf if leaf.layout is torch.strided else leaf.to_dense()
    leaf = (torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf).double()
    weights = torch.cos(torch.arange(leaf.numel(), dtype=torch.float64) * 0.7 + 0.3).reshape(leaf.shape)
    return (leaf.nan_to_num(7.0, 8.0, 9.0).clamp(-1e6, 1e6) * weights).sum()


def differing(group: Group) -> tuple[int, list[Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = list(outcomes())
        with staged(group, gather_below=0):
            sharded = list(outcomes())
    assert [name for name, _ in plain] == [name for name, _ in sharded]
    return len(plain), [
        (name, here, there)
        for (name, here), (_, there) in zip(plain, sharded, strict=True)
        if not _are_close(here, there)
    ]


def _are_close(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str) or one[0] != other[0]:
        return bool(one == other)
    pairs = zip(one[1:], other[1:], strict=True)
    return all((math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-7, abs_tol=1e-9) for a, b in pairs)


# Importing torch's samples alone takes ten seconds: the small sibling is tests/scripts/sharded_outputs.py.
@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_function_gives_what_it_gives_in_one_process(pool: Pools, workers: int) -> None:
    tried, found = pool(workers).run(differing, time_out=900)[0]
    assert tried > 2000
    assert found == []
