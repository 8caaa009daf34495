"""Which workers are left in an elastic run: told at the seam on_membership, when workers were lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Membership:
    """Workers by the ranks that they had at the start of the run."""

    lost: tuple[int, ...]  # since the last change
    left: tuple[int, ...]
    rank: int  # of this worker, now


def follow(stage: Any) -> None:
    """From now on the stage tells its listeners when the group was formed anew. Listeners must not use collectives: the
    work in which a worker was lost is not done again yet."""
    members = stage.group.members
    if members is None:
        return
    left = tuple(members.ranks)

    def tell() -> None:
        nonlocal left
        before, left = left, tuple(members.ranks)
        if lost := tuple(rank for rank in before if rank not in left):
            stage.emit("on_membership", Membership(lost, left, stage.group.rank))

    stage.group.follow(tell)
