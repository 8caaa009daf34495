"""Load of the host, its GPUs and the workers during a run: the samples of `devices.jsonl` as frames."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl

from paceline.record.inside import Folder
from paceline.record.samples import GpuSample, Sample, WorkerSample, read_samples


def host_samples(folder: Path | Folder) -> pl.DataFrame:
    """One row per sample: at (Unix time), cpu (share of all cores), busiest (share of the busiest core), memory,
    memory_total (bytes), read, written, received, sent (bytes per second)."""
    rows = [
        {
            "at": sample.at,
            "cpu": sum(sample.cpu) / len(sample.cpu) if sample.cpu else 0.0,
            "busiest": max(sample.cpu, default=0.0),
            **{name: getattr(sample, name) for name in HOST if name not in ("at", "cpu", "busiest")},
        }
        for sample in read_samples(folder)
    ]
    return pl.DataFrame(rows, schema=HOST, orient="row")


def gpu_samples(folder: Path | Folder) -> pl.DataFrame:
    """One row per sample and GPU: at, and the fields of `GpuSample` (index, utilisation, memory, …; null: unknown)."""
    rows = [{"at": at, **msgspec.structs.asdict(gpu)} for at, sample in _timed(folder) for gpu in sample.gpus]
    return pl.DataFrame(rows, schema=GPU, orient="row")


def worker_samples(folder: Path | Folder) -> pl.DataFrame:
    """One row per sample and worker: at, rank, cpu (cores), memory (bytes), children."""
    rows = [{"at": at, **msgspec.structs.asdict(one)} for at, sample in _timed(folder) for one in sample.workers]
    return pl.DataFrame(rows, schema=WORKER, orient="row")


_HOST = ("at", "cpu", "busiest", "memory", "memory_total", "read", "written", "received", "sent")
HOST = {name: pl.Int64 if name.startswith("memory") else pl.Float64 for name in _HOST}
_WHOLE = ("index", "memory", "memory_total", "rank", "children")
GPU = {name: pl.Int64 if name in _WHOLE else pl.Float64 for name in ("at", *GpuSample.__struct_fields__)}
WORKER = {name: pl.Int64 if name in _WHOLE else pl.Float64 for name in ("at", *WorkerSample.__struct_fields__)}


def _timed(folder: Path | Folder) -> list[tuple[float, Sample]]:
    return [(sample.at, sample) for sample in read_samples(folder)]
