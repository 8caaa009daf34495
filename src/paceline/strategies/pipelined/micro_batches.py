"""Which calls of a model may be computed in micro-batches of rows: proven at the first calls of each kind.

A few rows go through the pipeline at once and in micro-batches, and the outputs are compared. The comparison also finds
which dimension of each random draw holds rows, so that a micro-batch draws the numbers of its rows.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import PacelineError
from paceline.script import tree
from paceline.script.draws.rows import DrawRule, Position
from paceline.script.seams.stage import Stage
from paceline.script.slicing.comparing import close
from paceline.script.slicing.crossings import Split, memory_order
from paceline.script.slicing.dry_run import asleep, undisturbed, woken
from paceline.script.slicing.reasons import name_of
from paceline.strategies.pipelined import streams
from paceline.strategies.pipelined.schedule import Call, Turn
from paceline.strategies.pipelined.way_back import StagedModel
from paceline.torch_private import BatchNorm

VALUES = (str, bool, int, enum.Enum)  # that may switch what a model does
FEW = 2  # rows for each micro-batch in a proof, and one more, so that micro-batches differ in size
NO_ROWS = "its output has no rows"


@dataclass(frozen=True, slots=True)
class Kind:
    """How calls of one kind are computed."""

    chunks: int = 1  # micro-batches
    rules: tuple[DrawRule, ...] = ()  # of this worker's random draws
    calls: int = 0  # that proved it
    has_rows: bool = False  # the rows of a batch may be split over the axis data
    has_norms: bool = False  # if they are, batch norms must see the whole batch


class MicroBatches:
    """The kinds of calls of all models."""

    def __init__(self, stage: Stage, group: Group) -> None:
        """`group`: the workers of this worker's pipeline."""
        self._stage, self._group = stage, group
        self._kinds: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Kind]] = weakref.WeakKeyDictionary()

    def forget(self, module: nn.Module) -> None:
        self._kinds.pop(module, None)

    def kind_of(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        model: StagedModel,
        given: Any,
        batch: int,
        cuts: list[int],
        chunks: int,
    ) -> Kind:
        """How to compute this call in this many micro-batches: proven at the first two calls of its kind. Every worker
        calls it."""
        if chunks < 2 and self._stage.rows.world == 1:
            return Kind()
        types = tuple(map(_kind_of, tree.leaves(given)))
        key = (module.training, self._stage.views.switches(module), tree.structure(given), tuple(cuts), types, chunks)
        kinds = self._kinds.setdefault(module, {})
        if batch < 2:  # proves nothing
            return kinds.get(key, Kind())
        if key not in kinds or kinds[key].calls == 1:  # proven twice: the first batch may be made up
            norms = any(
                isinstance(m, BatchNorm) and (m.training or not m.track_running_stats) for m in module.modules()
            )
            rules, why = self._prove(plain, module, model, given, batch, cuts, chunks, norms=norms)
            if norms and not why:
                kinds[key] = Kind(calls=2, has_rows=True, has_norms=True)
                why = "it has batch norm, which sees the whole batch"
            else:
                kinds[key] = Kind(calls=2) if why else Kind(chunks, rules, 1 + (key in kinds), has_rows=True)
            if why:
                self._stage.views.warn(
                    f"The model {name_of(module)} is not cut into micro-batches, because {why}: its stages compute one "
                    "after the other, and a pipeline of them is no faster than one worker."
                )
        return kinds[key]

    def few(self, given: Any, rows: int) -> Any:
        """The arguments with a few rows of the batch."""
        leaves, dim = tree.leaves(given), self._stage.run.batch_dim
        batch, cuts = rows_of(leaves, dim)
        few = [
            leaf.detach().narrow(dim, 0, min(batch, rows)).clone() if number in cuts else leaf
            for number, leaf in enumerate(leaves)
        ]
        return tree.rebuild(given, iter(few))

    def _prove(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        model: StagedModel,
        given: Any,
        batch: int,
        cuts: Any,
        chunks: int,
        *,
        norms: bool,
    ) -> tuple[tuple[DrawRule, ...], str]:
        """Runs a few rows through the pipeline at once and in micro-batches. Returns the rules of this worker's random
        draws, and why the outputs differ, if they do. With batch norm (`norms`) only at once: outputs must have
        rows."""
        dim, draws, rows = self._stage.run.batch_dim, self._stage.views.draws, max(2, min(batch, chunks))
        few = min(batch, FEW * rows + 1)
        some, positions = self.few(given, few), list[Position]()
        told, why = set(draws.told), ""
        with undisturbed(module, still=()), woken(asleep(module)):
            start = streams.packed()
            try:
                at_once = Call(plain, some, cuts, [few], dim, lambda _: _noted(positions, draws.rehearsal()))
                whole = model.schedule.forward(at_once)
                drawn = tuple(positions[0].drawn or ()) if positions else ()
                tensors = [leaf for leaf in tree.leaves(whole.output) if isinstance(leaf, torch.Tensor)]
                if not tensors or any(t.dim() <= dim or not t.shape[dim] or t.shape[dim] % few for t in tensors):
                    return (), NO_ROWS
                if norms:
                    return (), ""
                streams.put(start)
                positions.clear()
                apart = Call(
                    *(plain, some, cuts, sizes_of(few, rows), dim),
                    lambda split: _noted(positions, draws.rehearsal(split, drawn, draws_rows=True)),
                )
                parts = model.schedule.forward(apart)
                same = map(_is_same, tree.leaves(parts.output), tree.leaves(whole.output))
                why = "" if all(same) else "its output depends on which rows are computed together"
            except PacelineError:
                raise
            except Exception as error:  # the same on all workers
                why = f"with a part of the batch it raised {type(error).__name__}: {error}"
        if draws.told - told:
            why = f"it has {min(draws.told - told)}"
            draws.told.clear()
            draws.told.update(told)
        why = next(filter(None, self._group.gather_objects(why, "the proof of micro-batches")), "")
        return tuple(positions[-1].found) if positions else (), why


def rows_of(leaves: list[Any], dim: int) -> tuple[int, list[int]]:
    """The number of rows of the batch, and the leaves that have them."""
    shapes = {n: leaf.shape for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() > dim}
    batch = next((shape[dim] for shape in shapes.values()), 0)
    return batch, [number for number, shape in shapes.items() if shape[dim] == batch]


def sizes_of(batch: int, chunks: int) -> list[int]:
    """The rows of each micro-batch."""
    n = max(1, min(batch, chunks))
    return [batch * (r + 1) // n - batch * r // n for r in range(n)]


def within(slices: Sequence[int], rank: int, chunks: int, turn: int) -> Split:
    """A micro-batch of a worker's slice, as a part of the whole batch: whose rows' random numbers it draws."""
    each = [sizes_of(size, chunks) for size in slices]
    flat = tuple(size for sizes in each for size in sizes)
    at = Turn(sum(map(len, each[:rank])) + turn, len(flat))
    return Split(at, flat)  # type: ignore[arg-type]


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    return leaf if isinstance(leaf, VALUES) else type(leaf)


@contextmanager
def _noted(positions: list[Position], rehearsal: Any) -> Iterator[None]:
    with rehearsal as at:
        positions.append(at)
        yield


def _is_same(found: Any, expected: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return bool(found == expected)
    return close(found, expected) and _order(found) == _order(expected)


def _order(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions in memory, in which the script's dropout draws. Micro-batches of one row may not tell."""
    order = [dim for dim in memory_order(tensor) if tensor.shape[dim] > 1]
    return [] if order == sorted(order) else order
