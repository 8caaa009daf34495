"""Workers that hold torch.distributed groups: each once over Gloo, the oracle, and once over `paceline`.

    results = worlds.run(function, *args)      # function(world, *args) on each of four workers

A worker makes the groups when it is first used. Slots and buffers are made tiny first, so that a few hundred numbers
take many rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from pool import Pools
from torch._C._distributed_c10d import PrefixStore

import paceline
from paceline.comm.group import Group
from paceline.comm.memory import engine, mailbox, pipelined_allreduce, reductions

WORKERS = 4
SUBSETS = ((0, 1, 2, 3), (0, 1), (1, 3), (3, 0, 2), (2,))
HALF = 4096  # bytes
SMALL = 512
BUFFER = 1024


@dataclass(frozen=True)
class World:
    """Of one worker. `gloo[i]` and `ours[i]` are groups of `SUBSETS[i]`."""

    group: Group
    gloo: list[Any]
    ours: list[Any]

    @property
    def rank(self) -> int:
        return self.group.rank

    def has(self, subset: int) -> bool:
        return self.rank in SUBSETS[subset]


class Worlds:
    """Four workers with the groups of `SUBSETS`."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return self._pools(WORKERS, "torch.distributed").run(in_world, function, args)


_world: World | None = None  # of this worker


def in_world(group: Group, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    global _world
    if _world is None:
        warnings.simplefilter("ignore", FutureWarning)  # torch renames some collectives: both names must work
        make_tiny()
        join(group, "gloo")
        _world = World(
            group,
            [dist.new_group(list(ranks)) for ranks in SUBSETS],
            [dist.new_group(list(ranks), backend="paceline") for ranks in SUBSETS],
        )
    return function(_world, *args)


def join(group: Group, backend: str) -> None:
    """Torch's default group, between the workers of a pool."""
    assert paceline.__version__  # imported for its backend
    dist.init_process_group(backend, store=PrefixStore("torch", group._store), rank=group.rank, world_size=group.world)


def make_tiny() -> None:
    """Of this process: what fits into a slot, a buffer or a chunk. The pool's own group is not to be used after."""
    engine.HALF, engine.SMALL, pipelined_allreduce.PIECE = HALF, SMALL, HALF // 4
    mailbox.BUFFER, mailbox.PAIR = BUFFER, 4 * mailbox.LINE + 2 * BUFFER
    reductions.CHUNK = 256
