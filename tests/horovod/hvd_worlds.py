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

    def __init__(self, pool: Pool, environment: dict[str, str] | None = None, *, hosts: int = 1) -> None:
        self._pool, self._environment, self._hosts = pool, environment or {}, hosts

    def run(self, function: Any, *args: Any) -> list[Any]:
        """The results of all ranks."""
        return self._pool.run(_call, self._environment, self._hosts, function, *args)


def world(pool: Pools, size: int) -> World:
    return World(pool(size, "horovod"))


@contextmanager
def fresh(size: int, hosts: int = 1, **environment: str) -> Iterator[World]:
    """Workers of a test's own, with environment variables. With several `hosts` they take each other for processes on
    other machines."""
    with alone(size) as own:
        yield World(own, environment, hosts=hosts)


def _call(group: Group, environment: dict[str, str], hosts: int, function: Any, *args: Any) -> Any:
    if not hvd.is_initialized():
        os.environ.update(environment)
        here = group.world // hosts
        use(
            WorkerSettings(
                run=RunSettings(script="", workers=group.world),
                record="",
                rank=group.rank,
                world=group.world,
                local_rank=group.rank % here,
                local_world=here,
                host_rank=group.rank // here,
                hosts=hosts,
                address="127.0.0.1",
            )
        )
        hvd.init()
    return function(group.rank, group.world, *args)
