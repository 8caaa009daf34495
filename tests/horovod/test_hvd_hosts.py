"""Ranks on several hosts: negotiation over TCP, tensors over Gloo."""

from __future__ import annotations

from hvd_worlds import fresh
from test_hvd_collectives import OPS, gradients, move_all, reduce_all
from test_hvd_negotiation import any_order, joins, mismatches, opposite_order

import paceline.horovod.torch as hvd


def places(rank: int, size: int) -> tuple[int, ...]:
    return hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()


def on_hosts(rank: int, size: int) -> None:
    for op in OPS:
        reduce_all(rank, size, op)
    move_all(rank, size)
    gradients(rank, size)
    any_order(rank, size, 7)
    opposite_order(rank, size)
    mismatches(rank, size)
    joins(rank, size)


def test_two_hosts_with_a_worker_each() -> None:
    with fresh(2, hosts=2) as ranks:
        assert ranks.run(places) == [(0, 1, 0, 2), (0, 1, 1, 2)]
        ranks.run(on_hosts)
