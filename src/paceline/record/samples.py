"""The file `devices.jsonl`: utilisation of the host and its devices during a run, one line per sample."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 64 << 20  # bytes: a month of samples


class GpuSample(msgspec.Struct, kw_only=True):
    """One GPU at one moment, as its driver reports it. None: the driver does not report this value."""

    index: int
    utilisation: float | None = None  # share of the time since the last sample in which a kernel ran
    memory: int | None = None  # bytes in use by all processes
    memory_total: int | None = None
    power: float | None = None  # watts
    clock: float | None = None  # of the multiprocessors, hertz
    clock_most: float | None = None
    temperature: float | None = None  # °C


class WorkerSample(msgspec.Struct, kw_only=True):
    """One worker and its children (loader processes) at one moment."""

    rank: int
    cpu: float  # number of busy cores
    memory: int  # bytes, resident
    children: int


class Sample(msgspec.Struct, kw_only=True):
    """The host at one moment. Rates are means since the previous sample."""

    at: float  # unix time
    cpu: list[float]  # busy share of each core, over all processes
    memory: int  # bytes of the host's memory in use
    memory_total: int
    read: float  # from disks, bytes per second
    written: float
    received: float  # from networks without the loopback, bytes per second
    sent: float
    workers: list[WorkerSample] = []
    gpus: list[GpuSample] = []


FILE = "devices.jsonl"


def samples_path(folder: Path) -> Path:
    return Path(folder) / FILE


def read_samples(folder: Path | Folder) -> list[Sample]:
    """The samples of a record. A torn last line is left out. Returns none if the file is missing, not a regular file,
    or larger than `LARGEST`."""
    try:
        return Folder.of(folder).file(FILE).lines(Sample, LARGEST)
    except (OSError, RecordError):
        return []
