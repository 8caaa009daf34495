"""The verdict of `bandwidth`: turns measured seconds into rates, and flags links that are slow for their kind.

Rates are GB/s (10⁹ bytes). A value is the median over rounds; `low` and `high` are the smallest and the largest round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TypeAlias

import msgspec

from paceline.comm.measuring.plan import Collective, Copy, Pair, Report
from paceline.topology import links as kinds
from paceline.topology.machine import Gpu, Topology
from paceline.units import percent

Matrix: TypeAlias = list[list[float]]

UNSTEADY = 0.5  # relative difference between rounds above which the machine is too busy to compare backends
TOO_LITTLE = 0.7  # fraction of the usual rate below which a link is flagged


class CopyRate(msgspec.Struct, kw_only=True):
    """The rate of copies to, from or within a GPU. A copy within a GPU counts each byte once, although the GPU reads
    and writes it."""

    gpu: int
    name: str
    path: str
    pinned: bool | None
    bytes: int
    gb_per_s: float
    low: float
    high: float
    latency: float
    usual: float | None = None  # GB/s; None: unknown


class PairRate(msgspec.Struct, kw_only=True):
    """The rate from `a` to `b`. Both ways: the sum of both directions at the same time."""

    between: str
    a: int
    b: int
    backend: str
    direct: bool
    bytes: int
    gb_per_s: float
    low: float
    high: float
    both_ways_gb_per_s: float
    latency: float
    kind: str | None = None  # kind of the link between the GPUs
    usual: float | None = None


class CollectiveRate(msgspec.Struct, kw_only=True):
    """One collective of one message size. `share`: its rate divided by the rate at which all workers copy as many bytes
    at the same time."""

    op: str
    backend: str
    algorithm: str
    workers: int
    bytes: int
    seconds: float
    low: float  # seconds
    high: float
    algbw: float
    busbw: float
    share: float


class CopyLimit(msgspec.Struct, kw_only=True):
    """Total GB/s when each worker copies `bytes` at the same time."""

    workers: int
    bytes: int
    gb_per_s: float


class WeakLink(msgspec.Struct, kw_only=True):
    """A link that is slow for its kind."""

    what: str
    gb_per_s: float
    usual: float
    share: float
    look_at: str


class Verdict(msgspec.Struct, kw_only=True):
    """All rates, weak links, notes and failures."""

    workers: int
    hosts: list[str] = []  # names, if there are several; pairs between hosts are numbers of this list
    copies: list[CopyRate]
    pairs: list[PairRate]
    collectives: list[CollectiveRate]
    copy_limits: list[CopyLimit]
    flags: list[WeakLink]
    notes: list[str]
    failures: list[str]
    interrupted: bool = False


def busbw_factor(op: str, workers: int) -> float:
    """The factor from algbw to busbw, which is comparable with a link's rate for any number of workers."""
    if op == "all_reduce":
        return 2 * (workers - 1) / workers
    if op in ("all_gather", "reduce_scatter", "all_to_all"):
        return (workers - 1) / workers
    return 1.0


def judge(
    reports: Iterable[Report],
    topology: Topology,
    *,
    workers: int,
    hosts: Sequence[str] = (),
    notes: Sequence[str] = (),
    failures: Sequence[str] = (),
    interrupted: bool = False,
) -> Verdict:
    """The verdict on the reports, also on those before an interrupt."""
    found = list(reports)
    copies = [_copy(each, topology) for each in found if isinstance(each, Copy)]
    pairs = [_pair(each, topology) for each in found if isinstance(each, Pair)]
    collectives = [each for each in found if isinstance(each, Collective)]
    return Verdict(
        workers=workers,
        hosts=list(hosts),
        copies=copies,
        pairs=pairs,
        collectives=[_collective(each) for each in collectives],
        copy_limits=_copy_limits(collectives),
        flags=[*_weak_copies(copies, topology), *_weak_pairs(pairs)],
        notes=list(notes),
        failures=list(failures),
        interrupted=interrupted,
    )


def spread(verdict: Verdict) -> float:
    """How much longer the slowest round took than the fastest: the median over collectives, as a fraction."""
    return median([each.high / each.low - 1 for each in verdict.collectives if each.low > 0] or [0.0])


def unsteady(verdict: Verdict) -> str:
    """A warning, if the rounds differ widely."""
    if spread(verdict) <= UNSTEADY:
        return ""
    return (
        f"The slowest round took {percent(spread(verdict), digits=0)} longer than the fastest: other processes "
        "keep this machine busy. Measure again when the machine is idle."
    )


def matrices(pairs: Sequence[PairRate]) -> tuple[list[int], Matrix, Matrix, Matrix]:
    """The ends of these pairs, and three matrices from end to end: the rate one way, the rate both ways, the latency.
    NaN marks a pair that was not measured."""
    names = sorted({end for pair in pairs for end in (pair.a, pair.b)})
    found: list[Matrix] = [[[math.nan] * len(names) for _ in names] for _ in range(3)]
    for pair in pairs:
        a, b = names.index(pair.a), names.index(pair.b)
        for matrix, value in zip(found, (pair.gb_per_s, pair.both_ways_gb_per_s, pair.latency), strict=True):
            matrix[a][b] = value
            if pair.between != "gpus":  # measured once for both directions
                matrix[b][a] = value
    return names, found[0], found[1], found[2]


def _rates(size: int, seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, lowest and highest GB/s."""
    return tuple(size / each / 1e9 for each in (median(seconds), max(seconds), min(seconds)))  # type: ignore[return-value]


def _copy(report: Copy, topology: Topology) -> CopyRate:
    rate, low, high = _rates(report.bytes, report.seconds)
    gpu = _gpu(topology, report.gpu, report.uuid)
    usual = None
    if report.pinned and gpu is not None and gpu.pcie_generation and gpu.pcie_width:
        usual = kinds.host_rate(gpu.pcie_generation, gpu.pcie_width)
    return CopyRate(
        gpu=report.gpu if gpu is None else gpu.index,
        name=report.name,
        path=report.path,
        pinned=report.pinned,
        bytes=report.bytes,
        gb_per_s=rate,
        low=low,
        high=high,
        latency=median(report.latency),
        usual=usual,
    )


def _pair(report: Pair, topology: Topology) -> PairRate:
    rate, low, high = _rates(report.bytes, report.one_way)
    both, _, _ = _rates(2 * report.bytes, report.both_ways)
    a, b, kind, usual = report.a, report.b, None, None
    if report.between == "gpus":
        ends = [_gpu(topology, index, uuid) for index, uuid in zip((a, b), report.uuids, strict=True)]
        a, b = (index if gpu is None else gpu.index for index, gpu in zip((a, b), ends, strict=True))
        kind, usual = _usual(topology, a, b, direct=report.direct)
    return PairRate(
        between=report.between,
        a=a,
        b=b,
        backend=report.backend,
        direct=report.direct,
        bytes=report.bytes,
        gb_per_s=rate,
        low=low,
        high=high,
        both_ways_gb_per_s=both,
        latency=median(report.latency),
        kind=kind,
        usual=usual,
    )


def _usual(topology: Topology, a: int, b: int, *, direct: bool) -> tuple[str | None, float | None]:
    link = topology.link(a, b)
    if link is None:
        return None, None
    if direct or link.p2p is False:
        return link.kind, link.gb_per_s
    # The link's rate assumes peer-to-peer access, but this copy went through the host, which is slower.
    slots = [(gpu.pcie_generation, gpu.pcie_width) for gpu in map(topology.gpu, (a, b)) if gpu is not None]
    if any(None in slot for slot in slots):
        return link.kind, None
    generation, width = (min(filter(None, each)) for each in zip(*slots, strict=True))
    return link.kind, kinds.usual_rate(link.kind, generation=generation, width=width, p2p=False)


def _collective(report: Collective) -> CollectiveRate:
    seconds = median(report.seconds)
    algbw = report.bytes / seconds / 1e9
    return CollectiveRate(
        op=report.op,
        backend=report.backend,
        algorithm=report.algorithm,
        workers=report.workers,
        bytes=report.bytes,
        seconds=seconds,
        low=min(report.seconds),
        high=max(report.seconds),
        algbw=algbw,
        busbw=algbw * busbw_factor(report.op, report.workers),
        share=median(report.copy) / seconds,
    )


def _copy_limits(reports: Sequence[Collective]) -> list[CopyLimit]:
    """The copy rate by message size. All implementations of a collective share the same timed copies, which count
    once."""
    by_size: dict[tuple[int, int], dict[str, list[float]]] = {}
    for report in reports:
        by_size.setdefault((report.workers, report.bytes), {})[report.op] = report.copy
    return [
        CopyLimit(
            workers=workers,
            bytes=size,
            gb_per_s=workers * size / median([each for times in copies.values() for each in times]) / 1e9,
        )
        for (workers, size), copies in sorted(by_size.items())
    ]


def _weak_copies(copies: Sequence[CopyRate], topology: Topology) -> Iterable[WeakLink]:
    for copy in copies:
        if copy.usual and copy.gb_per_s < TOO_LITTLE * copy.usual:
            gpu = topology.gpu(copy.gpu)
            node = None if gpu is None else gpu.node
            where = "" if node is None else f", and whether the worker's cores are on the GPU's NUMA node ({node})"
            yield WeakLink(
                what=f"GPU{copy.gpu}, {copy.path}, pinned",
                gb_per_s=copy.gb_per_s,
                usual=copy.usual,
                share=copy.gb_per_s / copy.usual,
                look_at=f"the slot while copying: nvidia-smi -i {copy.gpu} "
                f"--query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv{where}",
            )


def _weak_pairs(pairs: Sequence[PairRate]) -> Iterable[WeakLink]:
    direct = {(pair.a, pair.b) for pair in pairs if pair.between == "gpus" and pair.direct}
    for pair in pairs:
        # The path through the host matters only for a pair without a direct path.
        if not pair.direct and (pair.a, pair.b) in direct:
            continue
        if pair.kind and pair.usual and pair.gb_per_s < TOO_LITTLE * pair.usual:
            yield WeakLink(
                what=f"GPU{pair.a} to GPU{pair.b}, {kinds.in_words(pair.kind)} ({pair.kind})",
                gb_per_s=pair.gb_per_s,
                usual=pair.usual,
                share=pair.gb_per_s / pair.usual,
                look_at=_look_at(pair),
            )


def _look_at(pair: PairRate) -> str:
    if not pair.direct:
        return "why there is no peer-to-peer access: nvidia-smi topo -p2p r"
    if pair.kind and kinds.nvlinks(pair.kind):
        return f"NVLinks that are down or count errors: nvidia-smi nvlink --status -i {pair.a}; nvidia-smi nvlink -e"
    return (
        "access control on the PCIe switches, or an IOMMU, which send peers' traffic through the host: "
        "lspci -vvv | grep ACSCtl"
    )


def _gpu(topology: Topology, ordinal: int, uuid: str) -> Gpu | None:
    """The GPU with this UUID, else with this index: CUDA and the driver number GPUs differently, but share UUIDs."""
    if uuid:
        same = [gpu for gpu in topology.devices if gpu.uuid == uuid]
        if same:
            return same[0]
    return topology.gpu(ordinal)
