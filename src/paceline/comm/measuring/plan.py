"""The plan and the reports of a bandwidth measurement. Does not import torch: the command line reads this module, too.

A report holds every sample, in seconds; the verdict computes the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.topology.machine import Topology

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
BACKENDS = ("memory", "gloo", "nccl", "network", "hosts")
REPORTS = "measurements.jsonl"  # in the record of the run
ALGORITHMS = ("doubling", "halving_doubling", "ring", "tree")  # of the network backend
FLOAT = 4  # bytes: collectives are measured on float32
COPIES = 5  # reports per GPU


class MeasuringPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of one run. An empty or zero field switches its measurement off."""

    device_bytes: int = 0  # size of copies from, to, within and between GPUs
    pair_bytes: int = 0  # size of messages between two workers, or between two hosts
    topologies: bool = False  # what each host is made of
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    rounds: int = 7
    seconds: float = 0.6  # time budget per contender


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A copy to, from or within one GPU. `gpu` is the index that the worker sees."""

    gpu: int
    uuid: str
    name: str
    path: str  # host to device, device to host, device memory
    pinned: bool | None  # whether the host memory is pinned; None: the copy uses no host memory
    bytes: int
    seconds: list[float]
    latency: list[float]  # seconds of a copy of a few bytes


class Pair(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Messages between two workers, or copies from one GPU to another. `direct`: both sides access the same memory."""

    between: str  # workers (of one host), gpus, hosts (numbers; the first worker of each sends)
    a: int
    b: int
    backend: str
    direct: bool
    bytes: int
    one_way: list[float]
    both_ways: list[float]  # with `bytes` in each direction
    latency: list[float]
    uuids: tuple[str, str] = ("", "")


class Collective(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One collective of one size. The time of a round is the time of its slowest worker. `copy` holds the times of a
    plain copy of `bytes` in the same rounds, made by all workers at the same time."""

    op: str
    backend: str
    algorithm: str
    workers: int
    bytes: int
    seconds: list[float]
    copy: list[float]


class HostTopology(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a host is made of. `interface`: towards the other hosts."""

    host: int  # number
    interface: str
    topology: Topology


Report = Copy | Pair | Collective | HostTopology


def algorithms(op: str, backend: str) -> tuple[str, ...]:
    """The algorithms with which a backend runs a collective."""
    if backend == "network":
        return ALGORITHMS if op == "all_reduce" else ()
    if backend == "hosts":
        return ("its own",) if op == "all_reduce" else ()
    if backend == "memory" and op == "all_reduce":
        return "copied", "in place"
    return ("copied",) if backend == "memory" else ("its own",)


def elements(size: int, workers: int) -> int:
    """The number of elements in a collective of `size` bytes, rounded so that every worker's part is equally long."""
    return max(1, size // FLOAT // workers) * workers


def expected(plan: MeasuringPlan, workers: int, gpus: int, hosts: Sequence[int] = ()) -> int:
    """The number of reports of a complete run in which every pair of GPUs has peer access. `hosts`: the workers of each
    host, if there are several."""
    count = gpus * COPIES + gpus * (gpus - 1) * 2 if plan.device_bytes else 0
    if plan.pair_bytes:
        count += sum(each * (each - 1) for each in hosts or [workers])  # two backends for each pair
        count += len(hosts) * (len(hosts) - 1) // 2
    count += len(hosts) * plan.topologies
    each = sum(len(algorithms(op, backend)) for op in plan.ops for backend in plan.backends)
    return count + each * len(plan.sizes)


def in_words(report: Report) -> str:
    """A report as one log line."""
    if isinstance(report, Copy):
        kind = "" if report.pinned is None else ", pinned" if report.pinned else ", pageable"
        return f"GPU {report.gpu}: {report.path}{kind}"
    if isinstance(report, Pair):
        return f"{report.between} {report.a} and {report.b}: {report.backend}"
    if isinstance(report, HostTopology):
        return f"host {report.host}: its devices"
    way = "" if report.algorithm == "its own" else f", {report.algorithm}"
    return f"{report.op} of {report.bytes:,} bytes: {report.backend}{way}"
