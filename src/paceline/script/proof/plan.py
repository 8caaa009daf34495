"""What the proof finds about a kind of call: the plan by which it is computed in slices, or why it is not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from paceline.errors import NotSplitError
from paceline.script.draws.rows import DrawRule
from paceline.script.proof.graphs import GraphCuts
from paceline.script.proof.reads import Reads
from paceline.script.proof.side_effects import Place
from paceline.script.proof.ways import batch_of


@dataclass(frozen=True, slots=True)
class Role:
    """How the workers' pieces of an output are combined: rows along `dim`, a mean over rows, an average over the loss's
    denominators, a sum, or the same value on every worker."""

    kind: Literal["rows", "mean", "average", "sum", "same"]
    dim: int = 0
    spread: bool = False  # rows of a sample are not adjacent: (time · batch, …) of a model that has time first
    uneven: int = 0  # the number of the split of its rows, or of those of which it is the mean: see `Split.rows_of`
    order: tuple[int, ...] = ()  # of the dimensions in the memory of the whole output: see `crossings.memory_order`
    average: int = 0  # the number of the call's cross-entropy of which an average is a copy


@dataclass(slots=True)
class SlicePlan:
    """The plan for one kind of call: the arguments to cut, along which dimension, and each output's role."""

    batch_leaf: int  # the argument whose size is the batch
    cuts: dict[int, int]  # leaf → dim
    outputs: tuple[Role, ...]
    states: tuple[tuple[Place, Role], ...] = ()  # values that the call leaves in attributes
    buffers: tuple[tuple[str, str, Role], ...] = ()  # buffers that the call changes depending on its rows
    places: tuple[Place, ...] = ()  # attributes in which the call leaves tensors, in an order of their own
    draws: tuple[DrawRule, ...] = ()  # the random numbers that the call draws, in order
    compiled: bool = False  # not all of its operations can be seen
    reads_state: bool = False  # Python reads values that the module holds: each call is compared with the proof
    packs: bool = False  # it makes packed sequences: see `proof.packed`
    reads: Reads | None = None  # of numbers that all rows decide
    averages: int = 0  # cross-entropies that the call takes
    traced_averages: int = 0  # those of them that compiled code takes
    all_count: bool = False  # a mean over targets is a mean over rows only if no target is ignored
    names: list[str] = field(default_factory=list)  # of the operations that the call makes
    numbers: list[Any] = field(default_factory=list)  # that they get when it is tried out: see `numbers_of`
    told: str = ""  # what it prints or writes when it is tried out
    has_told: bool = False  # a call printed something else: all later ones are compared
    single: bool = False  # proven for single rows
    calls: int = 0  # made with this plan
    nodes: int | None = None  # of the graph that a call made whose operations were those proven
    is_doubtful: bool = False  # a call made another number of them: the next one is compared
    batches: set[int] = field(default_factory=set)  # the numbers of rows on which these operations were seen
    sizes: set[tuple[int, ...]] = field(default_factory=set)  # of other dimensions, with which a call was made

    @property
    def is_idle(self) -> bool:
        """Whether nothing that the call gives depends on the arguments that were cut."""
        return all(role.kind == "same" for role in self.outputs) and not (self.states or self.buffers)

    def batch(self, leaves: list[Any]) -> int:
        return batch_of(leaves, self.batch_leaf, self.cuts)

    def other_sizes(self, leaves: list[Any]) -> tuple[int, ...]:
        """Of the dimensions that are not cut."""
        tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        return tuple(s for i, leaf in tensors.items() for d, s in enumerate(leaf.shape) if self.cuts.get(i) != d)

    def fits(self, leaves: list[Any]) -> bool:
        batch = self.batch(leaves)
        if isinstance(self.cuts, GraphCuts):
            return batch > 0
        return all(leaves[i].shape[dim] == batch for i, dim in self.cuts.items())


@dataclass(frozen=True, slots=True)
class Unbatched:
    """A call that runs whole because it has no batch."""

    reason: str


Judgement = SlicePlan | NotSplitError | Unbatched | None  # of the proof: a call runs whole with any but the first


def anew(found: SlicePlan) -> SlicePlan:
    """The plan, before any call."""
    return replace(
        found, calls=0, nodes=None, is_doubtful=False, has_told=False, batches=set(found.batches), sizes=set()
    )


def may_be_shared(found: SlicePlan | None) -> bool:
    """Whether it is also true of a module that is alike: the shapes of the arguments have decided it, no value."""
    if found is None:
        return True
    by_value = found.reads_state or found.reads is not None or found.packs or isinstance(found.cuts, GraphCuts)
    return not (by_value or found.states or found.compiled)
