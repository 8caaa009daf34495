"""Process sets: subsets of ranks that run operations among themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paceline.horovod.engine.controller import current, required, sets_may_change
from paceline.horovod.engine.messages import ADD_SET, REMOVE_SET
from paceline.horovod.engine.operation import How, Operation

NOT_RANKS = "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"


class ProcessSet:
    """Some of the ranks. Usable after it was given to `init` or `add_process_set`: then it has a `process_set_id`."""

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise ValueError(f"{NOT_RANKS}. There is no MPI here: give a list of ranks.")
        ranks = sorted(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise ValueError(NOT_RANKS)
        self.ranks = ranks

    def _invalidate(self) -> None:
        self.process_set_id = None

    def size(self) -> int | None:
        """The number of its ranks; None before it is registered."""
        if self.process_set_id is None:
            return None
        return len(_ranks_of(self.process_set_id))

    def rank(self) -> int | None:
        """This process among the ranks of the set; None before it is registered."""
        if self.process_set_id is None:
            return None
        ranks, own = _ranks_of(self.process_set_id), required().member.rank
        if own not in ranks:
            raise ValueError("Process is not part of provided process set.")
        return ranks.index(own)

    def included(self) -> bool | None:
        """Whether this process belongs to the set."""
        if self.ranks is None:
            return None
        return required().member.rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a set after `init`, with HOROVOD_DYNAMIC_PROCESS_SETS=1. Every rank calls it, with the same ranks; waits for
    all. ValueError if there is a set of these ranks."""
    required()
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if not sets_may_change():
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
        )
    return adopt(process_set)


def adopt(process_set: ProcessSet) -> ProcessSet:
    """Registers a set. Every rank calls it; waits for all."""
    controller = required()
    ranks = tuple(process_set.ranks or ())
    if any(not 0 <= rank < controller.member.size for rank in ranks) or len(set(ranks)) != len(ranks):
        raise ValueError(f"A process set needs different ranks below {controller.member.size}: {process_set}")
    number = _change(Operation(ADD_SET, ADD_SET, [], how=How(ranks=ranks)))
    if number < 0:
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set, with HOROVOD_DYNAMIC_PROCESS_SETS=1; returns whether there was one. Every rank calls it; waits for
    all. The set of all ranks stays."""
    required()
    number = process_set.process_set_id
    if number is None or number == 0:
        return False
    if not sets_may_change():
        raise ValueError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow removing process sets after Horovod initialization."
        )
    process_set._invalidate()
    if number not in required().sets.ranks:
        return False
    _change(Operation(REMOVE_SET, REMOVE_SET, [], how=How(root=number)))
    return True


def is_registered(process_set: ProcessSet) -> bool:
    controller = current()
    return controller is not None and process_set.process_set_id in controller.sets.ranks


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {number: list(ranks) for number, ranks in required().sets.ranks.items()}


def _change(operation: Operation) -> int:
    controller = required()
    controller.submit(operation)
    return int(controller.wait(operation))


def _ranks_of(number: int) -> tuple[int, ...]:
    try:
        return required().sets.ranks[number]
    except KeyError:
        raise ValueError("Process set does not exist or has not been registered.") from None
