"""Samples the load of the host, its disks, networks and GPUs and of a run's workers, twice a second, in the launcher.

The sampler runs in a thread of the launcher, so that workers have no overhead. Values that cannot be read (no driver,
no permission, a worker that has just ended) are left out. The sampler never fails a run.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from paceline.errors import RecordError
from paceline.record import read_run
from paceline.record.private import opened
from paceline.record.samples import GpuSample, Sample, WorkerSample, samples_path
from paceline.topology.gpus import driver

EVERY = 0.5  # seconds


class Sampler:
    """Use as `with Sampler(record):` around a launch. Writes `devices.jsonl` to the record's folder."""

    def __init__(self, record: Path, *, every: float = EVERY) -> None:
        self._record, self._every = record, every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        import psutil  # imported only if there is something to sample

        encoder = msgspec.json.Encoder()
        meter = _Meter(psutil)
        with (
            contextlib.suppress(OSError),
            driver() as nvml,
            opened(samples_path(self._record), append=True) as file,
        ):
            meter.cards = _cards(nvml)
            while not self._stop.wait(self._every):
                if not meter.workers:
                    meter.workers = self._pids()
                file.write(encoder.encode(meter.take(nvml)) + b"\n")

    def _pids(self) -> dict[int, int]:
        """The process id of each rank; empty until the workers have started."""
        try:
            return {worker.rank: worker.pid for worker in read_run(self._record).workers}
        except RecordError:
            return {}


class _Meter:
    """Takes samples. Rates are differences between the counters of two consecutive samples."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self.workers: dict[int, int] = {}
        self.cards: list[tuple[int, Any]] = []
        self._at = time.monotonic()
        self._counted = self._counters()
        self._busy: dict[int, float] = {}  # by rank: CPU seconds at the last sample
        psutil.cpu_percent(percpu=True)  # the first call starts the measurement

    def take(self, nvml: Any) -> Sample:
        now, counted = time.monotonic(), self._counters()
        elapsed = max(now - self._at, 1e-6)
        rates = [max(b - a, 0) / elapsed for a, b in zip(self._counted, counted, strict=True)]
        self._at, self._counted = now, counted
        memory = self._psutil.virtual_memory()
        return Sample(
            at=time.time(),
            cpu=[percent / 100 for percent in self._psutil.cpu_percent(percpu=True)],
            memory=memory.total - memory.available,
            memory_total=memory.total,
            read=rates[0],
            written=rates[1],
            received=rates[2],
            sent=rates[3],
            workers=[found for rank, pid in self.workers.items() if (found := self._worker(rank, pid, elapsed))],
            gpus=[_gpu(nvml, index, handle) for index, handle in self.cards],
        )

    def _counters(self) -> list[float]:
        disks, networks = None, {}
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            disks = self._psutil.disk_io_counters()
        with contextlib.suppress(OSError, RuntimeError, NotImplementedError):
            networks = self._psutil.net_io_counters(pernic=True)
        outside = [counters for name, counters in networks.items() if name != "lo"]
        return [
            disks.read_bytes if disks else 0,
            disks.write_bytes if disks else 0,
            sum(counters.bytes_recv for counters in outside),
            sum(counters.bytes_sent for counters in outside),
        ]

    def _worker(self, rank: int, pid: int, elapsed: float) -> WorkerSample | None:
        family = family_of(pid)
        used, memory = 0.0, 0
        for one in family:
            with contextlib.suppress(self._psutil.Error):
                process = self._psutil.Process(one)
                times = process.cpu_times()
                used += times.user + times.system
                memory += process.memory_info().rss
        if not memory:
            return None  # the worker has ended
        before = self._busy.get(rank, used)
        self._busy[rank] = used
        # max(): the CPU time of an ended child process is missing, so the difference can be negative.
        return WorkerSample(rank=rank, cpu=max(used - before, 0.0) / elapsed, memory=memory, children=len(family) - 1)


def family_of(pid: int) -> list[int]:
    """A process and all its descendants. The kernel keeps a list of each thread's children; psutil would scan all
    processes of the host, which takes milliseconds per worker and slows the run."""
    found = [pid]
    for one in found:  # the list grows during the loop
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                with contextlib.suppress(OSError), open(f"/proc/{one}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found


def _cards(nvml: Any) -> list[tuple[int, Any]]:
    if nvml is None:
        return []
    found = []
    with contextlib.suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetCount()):
            found.append((index, nvml.nvmlDeviceGetHandleByIndex(index)))
    return found


def _gpu(nvml: Any, index: int, handle: Any) -> GpuSample:
    def ask(question: str, *more: Any) -> Any:
        try:
            return getattr(nvml, question)(handle, *more)
        except (nvml.NVMLError, AttributeError):
            return None

    busy, memory, power = (
        ask("nvmlDeviceGetUtilizationRates"),
        ask("nvmlDeviceGetMemoryInfo"),
        ask("nvmlDeviceGetPowerUsage"),
    )
    clock, most = ask("nvmlDeviceGetClockInfo", 1), ask("nvmlDeviceGetMaxClockInfo", 1)  # 1: NVML_CLOCK_SM
    return GpuSample(
        index=index,
        utilisation=None if busy is None else busy.gpu / 100,
        memory=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        power=None if power is None else power / 1000,
        clock=None if clock is None else clock * 1e6,
        clock_most=None if most is None else most * 1e6,
        temperature=ask("nvmlDeviceGetTemperature", 0),
    )
