"""A model's call in micro-batches: which calls may be computed so, and how arguments are cut and outputs joined.

The proof is that of sliced calls (`script.proof`), in one process. Each micro-batch draws its own random numbers, and
batch norm sees one micro-batch: the mod says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.script.draws.rows import Draws
from paceline.script.patches import all_of
from paceline.script.proof import value_checks
from paceline.script.proof.proof import Part, Proof
from paceline.script.proof.recorder import CannotTry
from paceline.script.seams.stage import Stage
from paceline.script.slicing import batch_norm
from paceline.script.slicing.backward_hooks import hooked
from paceline.script.slicing.loss_denominators import Averages
from paceline.script.slicing.plan import Role, SlicePlan
from paceline.script.slicing.reasons import unbatched
from paceline.script.slicing.ways import batch_of, ways_to_cut
from paceline.torch_private import uncompiled


class MicroBatches:
    """The proofs of one worker's calls. They make no collective: workers may have different numbers of rows."""

    def __init__(self, stage: Stage, parts: int) -> None:
        self._stage, self._parts = stage, parts
        self._prove = Proof(Part(0, 1), stage.run.batch_dim, Draws(own=True), parts)

    def prove(self, module: nn.Module, given: Any, leaves: list[Any]) -> SlicePlan | None:
        """The plan for calls like this one; None if it has no batch. ScriptError if the model cannot be computed in
        micro-batches."""
        ways = list(ways_to_cut(leaves, self._prove.batch_dim))
        if not ways:
            return None
        if (hook := hooked(module)) is not None:
            raise refusal(module, self._parts, hook.message.removesuffix("."))
        with self._in_trials():
            plan, why = self._prove.first(self._stage.views.own_call, module, given, leaves, ways)
        if plan is None:
            if unbatched(module, given, leaves) is not None or batch_of(leaves, *ways[0]) < 2:
                return None
            raise refusal(module, self._parts, why)
        left = [place[:2] for place, _ in plan.states] + [(path, name) for path, name, _ in plan.buffers]
        for path, name in left:
            where = f"{path or ''}.{name}".lstrip(".")
            raise refusal(
                module, self._parts, f"it keeps values in {where}, which would be of the last micro-batch only"
            )
        return plan

    @contextmanager
    def _in_trials(self) -> Iterator[None]:
        """With the patches that trials need, which a run on one worker does not have."""
        remove = all_of([batch_norm.find(self._stage), value_checks.find()])
        try:
            with self._stage.views.unsplit():
                yield
        finally:
            remove()


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


def join(outputs: list[Any], roles: tuple[Role, ...], sizes: list[int], averages: Averages) -> Any:
    """The output of the whole call. CannotTry if the number of targets of a mean is not known."""
    columns = zip(*map(tree.leaves, outputs), strict=True)
    joined = [_join(column, role, sizes, averages) for column, role in zip(columns, roles, strict=True)]
    return tree.rebuild(outputs[0], iter(joined))


def _join(column: tuple[Any, ...], role: Role, sizes: list[int], averages: Averages) -> Any:
    if role.kind == "rows":
        if not role.spread:
            return torch.cat(column, role.dim)
        apart = [piece.unflatten(role.dim, (-1, size)) for piece, size in zip(column, sizes, strict=True)]
        return torch.cat(apart, role.dim + 1).flatten(role.dim, role.dim + 1)
    if role.kind == "sum":
        return sum(column)
    if role.kind == "same":
        return column[0]
    if role.kind == "mean":
        return sum(value * (size / sum(sizes)) for value, size in zip(column, sizes, strict=True))
    counts = [averages.divisor_of(value) for value in column]
    if None in counts:
        raise CannotTry(
            "it returns a mean over targets whose number is not seen (compiled, or not torch.nn.functional's)"
        )
    found = torch.stack([count.to(column[0].device) for count in counts if count is not None])
    values = torch.where(found > 0, torch.stack(column), 0)  # without any target, a micro-batch's mean is NaN
    whole = (values * (found / found.sum())).sum().to(column[0].dtype)
    averages.take(whole, found.sum())
    return whole


def refusal(module: nn.Module, parts: int, why: str) -> ScriptError:
    name = type(uncompiled(module)).__name__
    return ScriptError(
        f"--mod accumulate={parts}: {name} cannot be computed in micro-batches: {why}.",
        advice="Each output must have a row for each sample, or be a mean or a sum over samples (--batch-dim sets the "
        "batch dimension). To save memory in another way, type: --mod checkpointing",
    )
