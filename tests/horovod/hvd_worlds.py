"""Horovod on the pool's workers: `world(pool, 2).run(function, …)` calls `function(rank, size, …)` on each rank.

Horovod stays initialised between tests, as starting it costs more than most of them. A test that ends or changes it
uses `fresh` workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pool import Pool, Pools, alone

import paceline.horovod.torch as hvd
from paceline.comm.group import Group
from paceline.settings import RunSettings, WorkerSettings, use


class World:
    """Ranks with Horovod."""

    def __init__(self, pool: Pool, environment: dict[str, str] | None = None) -> None:
        self._pool, self._environment = pool, environment or {}

    def run(self, function: Any, *args: Any) -> list[Any]:
        """The results of all ranks."""
        return self._pool.run(_call, self._environment, function, *args)


def world(pool: Pools, size: int) -> World:
    return World(pool(size, "horovod"))


@contextmanager
def fresh(size: int, **environment: str) -> Iterator[World]:
    """Workers of a test's own, with environment variables."""
    with alone(size) as own:
        yield World(own, environment)


def _call(group: Group, environment: dict[str, str], function: Any, *args: Any) -> Any:
    if not hvd.is_initialized():
        os.environ.update(environment)
        use(
            WorkerSettings(
                run=RunSettings(script="", workers=group.world),
                record="",
                rank=group.rank,
                world=group.world,
                local_rank=group.rank,
                local_world=group.world,
            )
        )
        hvd.init()
    return function(group.rank, group.world, *args)
