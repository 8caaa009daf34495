"""Computes a model's call in micro-batches: proves how to cut its arguments and join its outputs, then does so.

The proof is that of sliced calls (`script.slicing.proof`) in one process: without gradients and in eval mode, the
joined parts must equal the whole. Means are proven again at calls 2, 4, 8 …: a proof may hold for one batch and not for
the next (a mask).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.script import rng, tree
from paceline.script.slicing.comparing import close
from paceline.script.slicing.dry_run import undisturbed
from paceline.script.slicing.plan import Role
from paceline.script.slicing.ways import ways_to_cut
from paceline.torch_private import uncompiled


@dataclass(slots=True)
class MicroBatchPlan:
    """For one kind of call: the arguments to cut, the dimension of each, and each output's role."""

    batch_leaf: int
    cuts: dict[int, int]  # leaf → dim
    outputs: tuple[Role, ...]
    calls: int = 1

    def batch(self, leaves: list[Any]) -> int:
        return int(leaves[self.batch_leaf].shape[self.cuts[self.batch_leaf]])

    def fits(self, leaves: list[Any]) -> bool:
        return all(leaves[i].shape[dim] == self.batch(leaves) for i, dim in self.cuts.items())

    @property
    def is_due(self) -> bool:
        """Whether the plan must be proven again: at the 2nd, 4th, 8th … call, if an output is a mean."""
        return any(role.kind == "mean" for role in self.outputs) and self.calls & (self.calls - 1) == 0


def sizes_of(batch: int, parts: int) -> list[int]:
    """Sizes of the parts, which differ by one at most."""
    return [batch * (i + 1) // parts - batch * i // parts for i in range(parts)]


def cut(given: Any, leaves: list[Any], cuts: dict[int, int], sizes: list[int]) -> list[Any]:
    """The arguments of each micro-batch."""
    pieces = {i: leaves[i].split(sizes, dim) for i, dim in cuts.items()}
    return [
        tree.rebuild(given, iter([pieces[i][part] if i in cuts else leaf for i, leaf in enumerate(leaves)]))
        for part in range(len(sizes))
    ]


def join(outputs: list[Any], roles: tuple[Role, ...], sizes: list[int]) -> Any:
    """The output of the whole call."""
    columns = zip(*map(tree.leaves, outputs), strict=True)
    return tree.rebuild(
        outputs[0], iter([_join(column, role, sizes) for column, role in zip(columns, roles, strict=True)])
    )


def _join(column: tuple[Any, ...], role: Role, sizes: list[int]) -> Any:
    if role.kind == "rows":
        return torch.cat(column, role.dim)
    if role.kind == "mean":
        return sum(value * (size / sum(sizes)) for value, size in zip(column, sizes, strict=True))
    return column[0]


def prove(
    plain: Callable[..., Any], module: nn.Module, given: Any, parts: int, batch_dim: int
) -> MicroBatchPlan | None:
    """The plan for calls like this one; None if no argument has a batch dimension. Runs the model without side effects.
    ScriptError if the model cannot be computed in micro-batches."""
    subject = uncompiled(module)
    leaves = tree.leaves(given)

    def observe(given: Any, *, shift: bool = False) -> Any:
        with undisturbed(subject):
            if shift:
                torch.rand(1, device="cpu")
            before = rng.snapshot()
            return plain(subject, *given[0], **given[1]), rng.drawn_since(before)

    whole, drew = observe(given)
    again = observe(given, shift=True)[0] if drew else whole
    random = [not _same(a, b) for a, b in zip(tree.leaves(whole), tree.leaves(again), strict=True)]
    trouble = ""
    for batch_leaf, cuts in ways_to_cut(leaves, batch_dim):
        batch = leaves[batch_leaf].shape[cuts[batch_leaf]]
        if batch < 2:
            continue
        sizes = sizes_of(batch, min(parts, batch))
        try:
            pieces = [observe(piece)[0] for piece in cut(given, leaves, cuts, sizes)]
        except Exception as error:
            trouble = trouble or f"on a micro-batch, the model raised {type(error).__name__}: {error}"
            continue
        roles = _roles(pieces, whole, random, sizes)
        if None not in roles:
            return MicroBatchPlan(batch_leaf, cuts, tuple(role for role in roles if role is not None))
        paths = tree.paths(whole)
        trouble = trouble or f"its output{paths[roles.index(None)]} differs in micro-batches"
    if not trouble:
        return None
    raise refusal(module, parts, trouble)


def refusal(module: nn.Module, parts: int, why: str) -> ScriptError:
    name = type(uncompiled(module)).__name__
    return ScriptError(
        f"--mod accumulate={parts}: {name} cannot be computed in micro-batches: {why}.",
        advice="Each output must have a row for each sample, or be a mean over samples (--batch-dim sets the batch "
        "dimension). To save memory in another way, type: --mod checkpointing",
    )


def tensors_in(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors with a gradient function that a model keeps in its attributes, by name."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, child in module.named_modules()
        for name, value in child.__dict__.items()
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    }


def _roles(pieces: list[Any], whole: Any, random: list[bool], sizes: list[int]) -> list[Role | None]:
    wholes, columns = tree.leaves(whole), [tree.leaves(piece) for piece in pieces]
    if any(tree.structure(piece) != tree.structure(whole) for piece in pieces):
        return [None] * max(1, len(wholes))
    return [
        _role(target, column, unsure, sizes)
        for target, column, unsure in zip(wholes, zip(*columns, strict=True), random, strict=True)
    ]


def _role(target: Any, column: tuple[Any, ...], unsure: bool, sizes: list[int]) -> Role | None:
    if not isinstance(target, torch.Tensor):
        return Role("same") if all(_same(value, target) for value in column) else None
    if target.dim() == 0:
        mean = target.is_floating_point() and (unsure or _same(_join(column, Role("mean"), sizes), target))
        return Role("mean") if mean else Role("same") if all(_same(value, target) for value in column) else None
    for dim in range(target.dim()):
        shapes = [(*target.shape[:dim], size, *target.shape[dim + 1 :]) for size in sizes]
        if target.shape[dim] == sum(sizes) and [tuple(value.shape) for value in column] == shapes:
            rows = Role("rows", dim)
            return rows if unsure or _same(_join(column, rows, sizes), target) else None
    return Role("same") if all(_same(value, target) for value in column) else None


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, torch.Tensor):
        return close(a, b)
    return type(a) is type(b) and bool(a is b or a == b)
