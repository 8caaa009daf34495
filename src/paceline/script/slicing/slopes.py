"""Gradients of a module, on the whole batch and on slices: they must add up, too.

Outputs may be row by row while a gradient is not: a quantiser that divides the gradient of its scale by the number of
elements, or an autograd.Function whose backward takes a norm over the rows. Two sums stand for each parameter's
gradient; those of all slices add up to those of the batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.script import tree
from paceline.script.slicing.arguments import cut_leaves
from paceline.script.slicing.comparing import TOLERANCE, is_float32, rows_of
from paceline.script.slicing.crossings import Split
from paceline.script.slicing.dry_run import SeenCall, in_double
from paceline.script.slicing.plan import Role, SlicePlan
from paceline.script.slicing.ways import FEW, some_rows, split_of
from paceline.torch_private import uncompiled

EXACT = 1e-6  # in float64, relative to the sum of absolute values


class Gradients:
    """Compares them. Every worker calls it at the same call, and all workers get the same answer."""

    def __init__(self, group: Group, dry_run: Callable[..., SeenCall]) -> None:
        self._group, self._dry_run = group, dry_run
        self._known: weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]] = weakref.WeakKeyDictionary()

    def add_up(self, plain: Callable[..., Any], module: nn.Module, given: Any, plan: SlicePlan) -> bool:
        """Whether gradients on slices add up to those on the whole batch; tried once for a plan, and on a few rows,
        which need little memory. Also True if that cannot be tried."""
        subject, leaves, few = uncompiled(module), tree.leaves(given), FEW * self._group.world + 1
        known, kind = self._known.setdefault(subject, {}), (plan.batch_leaf, str(plan.cuts), plan.outputs)
        if kind not in known:
            if plan.batch(leaves) > few:
                given = some_rows(given, leaves, plan.cuts, few)
            known[kind] = not self._all(bool(_askable(subject))) or self._try(plain, subject, given, plan)
        return known[kind]

    def _try(self, plain: Callable[..., Any], module: nn.Module, given: Any, plan: SlicePlan) -> bool:
        if self._agree(plain, module, given, plan):
            return True
        copied = in_double(module, given)  # rounding?
        return not self._all(copied is not None) or copied is None or self._agree(plain, *copied, plan)

    def _agree(self, plain: Callable[..., Any], module: nn.Module, given: Any, plan: SlicePlan) -> bool:
        ask, leaves = partial(_slopes, _askable(module), plan.outputs), tree.leaves(given)
        whole = self._dry_run(plain, module, given, partial(ask, None))
        split = split_of(leaves, plan.batch_leaf, plan.cuts, self._group)
        cut = cut_leaves(given, leaves, plan.cuts, split)
        piece = self._dry_run(plain, module, cut, partial(ask, split), split, whole.draws)
        return _add_up(self._group.gather_objects((whole.slopes, piece.slopes), "the proof"), whole.output)

    def _all(self, value: bool) -> bool:
        return all(self._group.gather_objects(value, "the proof"))


def _askable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters whose gradients are asked for: none, where a hook of the script would see it, where a strategy has
    divided them, and in a module that is torch's own with all its parts: its gradients add up."""
    if all(type(m).__module__.startswith("torch.nn.modules.") and not m._forward_hooks for m in module.modules()):
        return []
    found = [p for p in module.parameters() if p.requires_grad]
    if any(type(p) is not nn.Parameter or p._backward_hooks or p.layout is not torch.strided for p in found):
        return []
    return found


def _slopes(
    parameters: Sequence[nn.Parameter], roles: Sequence[Role], split: Split | None, output: Any
) -> torch.Tensor | None:
    """Two sums over each parameter's gradient, and the sums of absolute values. The output's own gradient is noise, the
    same for a row wherever it is computed, and N times too large on a slice, as in a real call (see `crossings`). None
    if there is nothing to ask."""
    outputs, given, world = [], [], 1 if split is None else split.group.world
    for number, (leaf, role) in enumerate(zip(tree.leaves(output), roles, strict=True)):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            if role.kind != "rows":
                return None  # a mean or a sum holds for the batch that it was proven on, and these are a few rows
            outputs.append(leaf)
            given.append(_noise(leaf, role, split, number) * world)
    if not outputs:
        return None
    found = torch.autograd.grad(outputs, parameters, given, allow_unused=True)
    none = torch.zeros(4, dtype=torch.float64, device="cpu")
    sums = [none if g is None else _sums(g, p.detach()) for g, p in zip(found, parameters, strict=True)]
    return torch.stack(sums) / world


def _noise(leaf: torch.Tensor, role: Role, split: Split | None, seed: int) -> torch.Tensor:
    """A number for each row, and one for each place in the last dimension: little to draw for many classes."""
    size, last = leaf.shape[role.dim], leaf.shape[-1]
    if split is not None:
        split = split.rows_of(role.uneven)
        size = size // max(split.mine, 1) * split.batch
    numbers = torch.randn(size + last, generator=torch.Generator().manual_seed(seed), device="cpu", dtype=torch.float32)
    rows, columns = numbers.split((size, last))
    if split is not None:
        rows = rows_of(rows, 0, split, spread=role.spread)
    rows = rows.to(leaf.device, leaf.dtype).view([-1 if dim == role.dim else 1 for dim in range(leaf.dim())])
    found = rows + columns.to(leaf.device, leaf.dtype) if role.dim % leaf.dim() != leaf.dim() - 1 else rows
    return found.expand(leaf.shape) * (split is None or split.mine > 0)


def _sums(grad: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if grad.layout is not torch.strided:
        grad = grad.to_dense()
    if grad.is_complex():
        grad, parameter = torch.view_as_real(grad), torch.view_as_real(parameter)
    along = grad * parameter
    return torch.stack([x.sum(dtype=torch.float64) for x in (grad, along, grad.abs(), along.abs())]).cpu()


def _add_up(found: Sequence[tuple[torch.Tensor | None, torch.Tensor | None]], output: Any) -> bool:
    """Whether the sums of all workers' slices are those of the whole batch, which each worker has computed, too. True
    if that cannot be told."""
    wholes, slices = ([sums for sums in column if sums is not None] for column in zip(*found, strict=True))
    if len(wholes) + len(slices) < 2 * len(found) or not all(_are_close(wholes[0], other, output) for other in wholes):
        return True  # it raised somewhere; or the workers' weights differ, which is told elsewhere
    return _are_close(wholes[0], torch.stack(slices).sum(0), output)


def _are_close(sums: torch.Tensor, others: torch.Tensor, output: Any) -> bool:
    """Equal up to rounding. NaNs tell nothing."""
    floats = [leaf for leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    coarse = torch.float32 if is_float32(output) else torch.bfloat16
    tolerance = EXACT if all(leaf.dtype is torch.float64 for leaf in floats) else TOLERANCE[coarse]
    sizes = sums[:, 2:]
    differ = (sums - others)[:, :2].abs() > tolerance * sizes + tolerance**2 * sizes.max(0).values
    return not bool(differ.any())
