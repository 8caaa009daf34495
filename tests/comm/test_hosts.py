"""Workers on several hosts: the same sums as on one. Hosts are pretended, or made of network namespaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.comm.group import Group
from paceline.comm.hosts import HostsChannel, address_towards
from paceline.settings import Compression

RUNS = iter(range(1000))


def opened(group: Group, run: int, hosts: list[str]) -> HostsChannel:
    from torch.distributed import PrefixStore

    return HostsChannel(PrefixStore(f"test{run}", group._store), group.rank, hosts, address="127.0.0.1")


def summed(group: Group, run: int, hosts: list[str], sizes: list[int], compression: Compression) -> Any:
    channel = opened(group, run, hosts)
    channel.compression = compression
    flats = [_brought(group.rank, number, size) for number, size in enumerate(sizes)]
    begun = [channel.start(flat, None, "gradients", key=number) for number, flat in enumerate(flats)]
    for one in reversed(begun):  # in any order
        channel.finish(one)
    row = torch.full((group.rank + 1,), float(group.rank))
    rows = [torch.empty(rank + 1) for rank in range(group.world)]
    channel.all_gather(row, rows, "rows")
    return flats, rows


def _brought(rank: int, number: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * number + rank))


@pytest.mark.parametrize("hosts", [pytest.param("aabb", marks=pytest.mark.slow), "abab", "abb", "abc"], ids=str)
def test_buckets_are_summed_over_all_workers_of_all_hosts(pool: Any, hosts: str) -> None:
    sizes = [1, 0, 1000, 300_001, 3_000_000]
    found = pool(len(hosts)).run(summed, next(RUNS), list(hosts), sizes, "none")
    for number, size in enumerate(sizes):
        expected = sum(_brought(rank, number, size).double() for rank in range(len(hosts)))
        for flats, _ in found:
            assert torch.equal(flats[number], found[0][0][number]), "all workers end with the same bits"
            torch.testing.assert_close(flats[number].double(), expected, rtol=1e-5, atol=1e-5)
    assert all(row.tolist() == [float(rank)] * (rank + 1) for _, rows in found for rank, row in enumerate(rows))


@pytest.mark.parametrize(("compression", "off_by"), [("bf16", 0.02), ("fp16", 0.002)])
def test_compressed_sums_are_off_by_rounding_only_and_alike_everywhere(
    pool: Any, compression: str, off_by: Any
) -> None:
    found = pool(4).run(summed, next(RUNS), list("aabb"), [50_000], compression)
    expected = sum(_brought(rank, 0, 50_000).double() for rank in range(4))
    apart = (found[0][0][0].double() - expected).abs().max()
    assert 0 < apart < off_by * expected.abs().max()
    assert all(torch.equal(flats[0], found[0][0][0]) for flats, _ in found)


def test_a_host_knows_the_address_by_which_another_sees_it() -> None:
    assert address_towards("127.0.0.1", 80) == "127.0.0.1"
