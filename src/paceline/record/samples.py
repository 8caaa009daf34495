"""How busy the host and its devices were while a run ran: `devices.jsonl`, a line a sample."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record.inside import Folder

LARGEST = 64 << 20  # bytes: a month of samples


class GpuSample(msgspec.Struct, kw_only=True):
    """One GPU at one moment, as its driver counts. What it does not tell is None."""

    index: int
    utilisation: float | None = None  # share of the time since the last sample in which a kernel ran
    memory: int | None = None  # bytes in use, by anybody
    memory_total: int | None = None
    power: float | None = None  # watts
    clock: float | None = None  # of the multiprocessors, hertz
    clock_most: float | None = None
    temperature: float | None = None  # °C


class WorkerSample(msgspec.Struct, kw_only=True):
    """One worker and its children (loader processes) at one moment."""

    rank: int
    cpu: float  # cores that it kept busy
    memory: int  # bytes, resident
    children: int


class Sample(msgspec.Struct, kw_only=True):
    """One moment. Rates are since the sample before."""

    at: float  # unix time
    cpu: list[float]  # share of each core that was busy, with anything
    memory: int  # bytes of the host in use
    memory_total: int
    read: float  # from disks, bytes a second
    written: float
    received: float  # from networks, without the loopback
    sent: float
    workers: list[WorkerSample] = []
    gpus: list[GpuSample] = []


FILE = "devices.jsonl"


def samples_path(folder: Path) -> Path:
    return Path(folder) / FILE


def read_samples(folder: Path | Folder) -> list[Sample]:
    """The samples of a record; none where none were taken. A torn last line is left out. A file that is
    no regular one, or larger than any of ours, is left out, too: readers do without."""
    try:
        lines = Folder.of(folder).file(FILE).read(LARGEST).splitlines()
    except (OSError, RecordError):
        return []
    decoder = msgspec.json.Decoder(Sample)
    found = []
    for line in lines:
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, RecursionError):
            break
    return found
