"""What workers are asked to measure, and what they report. No torch here: the command line reads it, too.

A report holds every sample, in seconds; what they come to is decided where the verdict is made.
"""

from __future__ import annotations

import msgspec

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
BACKENDS = ("memory", "gloo", "nccl", "network")
ALGORITHMS = ("doubling", "halving_doubling", "ring", "tree")  # of the network
FLOAT = 4  # bytes: collectives are measured on float32
COPIES = 5  # reports of one GPU


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """For the workers of one run. What is empty or zero is not measured."""

    report: str  # the file that rank 0 appends to
    device_bytes: int = 0  # of copies from, to, within and between GPUs
    pair_bytes: int = 0  # of messages between two workers
    ops: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    backends: tuple[str, ...] = ()
    rounds: int = 7
    seconds: float = 0.6  # that one thing to measure should take at most, by the number of its contenders


class Copy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To, from or within one GPU, numbered as the worker sees them."""

    gpu: int
    uuid: str
    name: str
    path: str  # host to device, device to host, device memory
    pinned: bool | None  # the host's memory; None: none is used
    bytes: int
    seconds: list[float]
    latency: list[float]  # of a few bytes


class Pair(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Between two workers, or from one GPU to another. `direct`: through memory that both reach."""

    between: str  # workers, gpus
    a: int
    b: int
    backend: str
    direct: bool
    bytes: int
    one_way: list[float]
    both_ways: list[float]  # for as many bytes in each direction
    latency: list[float]
    uuids: tuple[str, str] = ("", "")


class Collective(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One collective of one size: a round's time is that of its slowest worker. `copy` are the same rounds of every
    worker copying as many bytes once, all at the same time."""

    op: str
    backend: str
    algorithm: str
    workers: int
    bytes: int
    seconds: list[float]
    copy: list[float]


Report = Copy | Pair | Collective


def algorithms(op: str, backend: str) -> tuple[str, ...]:
    """The ways in which a backend does this."""
    if backend == "network":
        return ALGORITHMS if op == "all_reduce" else ()
    if backend == "memory" and op == "all_reduce":
        return "copied", "in place"
    return ("copied",) if backend == "memory" else ("its own",)


def elements(size: int, workers: int) -> int:
    """Numbers in a collective of that many bytes: every worker's part is of the same length."""
    return max(1, size // FLOAT // workers) * workers


def expected(plan: Plan, workers: int, gpus: int) -> int:
    """How many reports there will be, if nothing goes wrong and every two GPUs reach each other."""
    count = gpus * COPIES + gpus * (gpus - 1) * 2 if plan.device_bytes else 0
    if plan.pair_bytes:
        count += workers * (workers - 1)  # for each pair two ways to send
    each = sum(len(algorithms(op, backend)) for op in plan.ops for backend in plan.backends)
    return count + each * len(plan.sizes)


def in_words(report: Report) -> str:
    """For a log."""
    if isinstance(report, Copy):
        kind = "" if report.pinned is None else ", pinned" if report.pinned else ", pageable"
        return f"GPU {report.gpu}: {report.path}{kind}"
    if isinstance(report, Pair):
        return f"{report.between} {report.a} and {report.b}: {report.backend}"
    way = "" if report.algorithm == "its own" else f", {report.algorithm}"
    return f"{report.op} of {report.bytes:,} bytes: {report.backend}{way}"
