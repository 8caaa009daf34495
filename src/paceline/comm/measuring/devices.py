"""Measures copies to, from, within and between the GPUs that this process sees. Only one worker measures.

Copies on one stream are timed with CUDA events. Copies on several streams are timed by the host clock, with every
device synchronized. Each sample is the mean of several copies in a row, after a warm-up. The paths are measured in
turn, so that a disturbance affects all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from paceline.comm.measuring.plan import Copy, MeasuringPlan, Pair

WARM_UP = 2  # rounds
WORD = 4  # bytes: the copy that measures latency
WORDS = 50  # copies of WORD bytes in a row
LARGE = 10  # large copies in a row: device memory is so fast that the launch overhead of a single copy would count
CHUNK = 8 << 20  # bytes staged through the host at a time, if there is no direct path
PARALLEL = 4  # copies in a row when the host clock measures

Samples = list[list[float]]


def measure(plan: MeasuringPlan) -> Iterator[Copy | Pair]:
    """The reports of all GPUs and GPU pairs; empty if torch sees no GPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for gpu in range(count):
        yield from _copies(gpu, plan)
    for a, b in itertools.permutations(range(count), 2):
        yield from _pair(a, b, plan)


def _copies(gpu: int, plan: MeasuringPlan) -> Iterator[Copy]:
    size = _fitting(plan.device_bytes, gpu)
    with torch.cuda.device(gpu):
        device, other = _bytes(size, gpu), _bytes(size, gpu)
        pinned, pageable = _bytes(size).pin_memory(), _bytes(size)
        ways = [
            ("host to device", True, device, pinned),
            ("host to device", False, device, pageable),
            ("device to host", True, pinned, device),
            ("device to host", False, pageable, device),
            ("device memory", None, other, device),
        ]
        large = _interleaved([_by_events(gpu, to, source, LARGE) for _, _, to, source in ways], plan.rounds)
        small = _interleaved(
            [_by_events(gpu, to[:WORD], source[:WORD], WORDS) for _, _, to, source in ways], plan.rounds
        )
    for (path, is_pinned, _, _), seconds, latency in zip(ways, large, small, strict=True):
        yield Copy(
            gpu=gpu,
            uuid=_uuid(gpu),
            name=torch.cuda.get_device_name(gpu),
            path=path,
            pinned=is_pinned,
            bytes=size,
            seconds=seconds,
            latency=latency,
        )
    torch.cuda.empty_cache()


def _pair(a: int, b: int, plan: MeasuringPlan) -> Iterator[Pair]:
    size = min(_fitting(plan.device_bytes, a), _fitting(plan.device_bytes, b))
    mine, its = [_bytes(size, a), _bytes(size, a)], [_bytes(size, b), _bytes(size, b)]
    there, back = _Way(a, b, mine[0], its[0]), _Way(b, a, its[1], mine[1])
    kinds = [("peer to peer", True)] if torch.cuda.can_device_access_peer(b, a) else []
    kinds.append(("through the host", False))
    samplers: list[Callable[[], float]] = []
    for _, direct in kinds:
        samplers.append(_by_host((a, b), [there], direct))
        samplers.append(_by_host((a, b), [there, back], direct))
        samplers.append(_by_host((a, b), [there.word()], direct, repeats=WORDS))
    times = _interleaved(samplers, plan.rounds)
    for at, (backend, direct) in enumerate(kinds):
        one_way, both_ways, latency = times[3 * at : 3 * at + 3]
        yield Pair(
            between="gpus",
            a=a,
            b=b,
            backend=backend,
            direct=direct,
            bytes=size,
            one_way=one_way,
            both_ways=both_ways,
            latency=latency,
            uuids=(_uuid(a), _uuid(b)),
        )
    torch.cuda.empty_cache()


class _Way:
    """Copies from one GPU to another, on streams of its own: on the default streams two directions would wait for each
    other."""

    def __init__(self, source: int, target: int, data: torch.Tensor, into: torch.Tensor) -> None:
        self.data, self.into = data, into
        self._streams = torch.cuda.Stream(source), torch.cuda.Stream(target)
        self._host = [torch.empty(min(CHUNK, data.numel()), dtype=torch.uint8).pin_memory() for _ in range(2)]
        self._free: list[Any] = [None, None]  # per host buffer: event after its content has reached the target GPU
        self._turn = 0

    def word(self) -> _Way:
        """The same direction for a copy of WORD bytes."""
        ends = self._streams[0].device.index, self._streams[1].device.index
        return _Way(ends[0], ends[1], self.data[:WORD], self.into[:WORD])

    def go(self, direct: bool) -> None:
        """Starts a copy."""
        leaving, arriving = self._streams
        if direct:
            with torch.cuda.stream(arriving), torch.cuda.stream(leaving):
                self.into.copy_(self.data, non_blocking=True)
            return
        # Double buffering in pinned memory: one buffer fills while the other empties.
        for at in range(0, self.data.numel(), CHUNK):
            piece, turn = self.data[at : at + CHUNK], self._turn
            host = self._host[turn][: piece.numel()]
            with torch.cuda.stream(leaving):
                if self._free[turn] is not None:
                    leaving.wait_event(self._free[turn])
                host.copy_(piece, non_blocking=True)
                filled = leaving.record_event()
            with torch.cuda.stream(arriving):
                arriving.wait_event(filled)
                self.into[at : at + CHUNK].copy_(host, non_blocking=True)
                self._free[turn] = arriving.record_event()
            self._turn = 1 - turn


def _by_events(gpu: int, to: torch.Tensor, source: torch.Tensor, repeats: int = 1) -> Callable[[], float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # Copies of pageable memory block the host in any case.
    can_overlap = all(tensor.is_cuda or tensor.is_pinned() for tensor in (to, source))

    def sample() -> float:
        torch.cuda.synchronize(gpu)
        begin.record()
        for _ in range(repeats):
            to.copy_(source, non_blocking=can_overlap)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / repeats

    return sample


def _by_host(gpus: tuple[int, int], ways: list[_Way], direct: bool, repeats: int = PARALLEL) -> Callable[[], float]:
    def sample() -> float:
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        begun = time.perf_counter()
        for _ in range(repeats):
            for way in ways:
                way.go(direct)
        for gpu in gpus:
            torch.cuda.synchronize(gpu)
        return (time.perf_counter() - begun) / repeats

    return sample


def _interleaved(samplers: list[Callable[[], float]], rounds: int) -> Samples:
    found: Samples = [[] for _ in samplers]
    for turn in range(WARM_UP + rounds):
        for sample, samples in zip(samplers, found, strict=True):
            seconds = sample()
            if turn >= WARM_UP:
                samples.append(seconds)
    return found


def _bytes(size: int, gpu: int | None = None) -> torch.Tensor:
    """A byte tensor, written once: the kernel maps no real memory before the first write."""
    return torch.empty(size, dtype=torch.uint8, device="cpu" if gpu is None else f"cuda:{gpu}").fill_(1)


def _fitting(size: int, gpu: int) -> int:
    """`size`, or a quarter of the GPU's free memory if that is less: other processes may use the GPU."""
    free, _ = torch.cuda.mem_get_info(gpu)
    return max(WORD, min(size, int(free) // 4))


def _uuid(gpu: int) -> str:
    """The UUID in the driver's spelling; empty if this torch version does not report it."""
    found = getattr(torch.cuda.get_device_properties(gpu), "uuid", "")
    return f"GPU-{found}" if found else ""
