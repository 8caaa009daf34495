"""The figures of a run: step time, samples/s, the parts of a step, the spread and the slowest worker.

This is the only place that computes them. The live line, the summary of `run`, `runs`, the trials of `scale`, `sweep`,
`tune` and `converge`, the rules, every page and every `--json` show what `figures` returns. Pure Python over columns of
numbers: the launcher imports neither polars nor numpy for it.

Steps that count are those after the warm-up, without evaluation between them and the step before (the script's own
loop over its test set is part of no phase), and not under the profiler. Of these steps of the first rank, samples/s and
step time are those of the median block: a few disturbed blocks change nothing, and samples/s times step time is the
batch. A loader with processes delivers in bursts, and may start its processes in every epoch: if a large part of the
time is in such single long waits, which recur, no block is typical, and the figures are those of all steps together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from itertools import compress, pairwise
from pathlib import Path
from statistics import fmean, median, mode
from typing import TYPE_CHECKING

import msgspec

from paceline.errors import RecordError
from paceline.record import Step, read_run, read_steps
from paceline.record.inside import Folder
from paceline.record.phases import AT_SEAMS, EVALUATION, OTHER, PHASES
from paceline.record.private import write_file
from paceline.record.settling import settle
from paceline.tables.delays import Columns, Delay, delays

if TYPE_CHECKING:
    import polars as pl

FILE = "figures.json"
VERSION = 5  # of the way in which the figures are computed
LARGEST = 1 << 20  # bytes of that file
LONG_WAIT = 2.0  # times the usual step: a wait for input of this length is not the usual one
RECURRING = 0.15  # share of the time in such waits from which on they count in full
BLOCKS = 11  # blocks of consecutive steps; an odd number, so that the median is one of them
CURVE = 32  # losses in `Figures.curve`
FIELDS = ("step", "samples", "total", *PHASES, "check", "split", "traced", "loss", "memory")


class Figures(msgspec.Struct, kw_only=True, frozen=True):
    """A run in numbers; times are seconds. Everything is 0, empty or None if the run made no step."""

    steps: int = 0  # of the first rank, all of them
    samples: int = 0  # of all steps
    batch: int = 0  # samples of most steps
    warm_up: int = 0  # first steps, which do not count
    counted: int = 0  # steps of the first rank that count
    step_time: float = 0.0
    samples_per_s: float = 0.0  # of the global batch; 0: the samples cannot be counted
    low: float = 0.0  # samples/s of the slowest block …
    high: float = 0.0  # … and of the fastest
    step: dict[str, float] = {}  # `total`, which is `step_time`; its phases, which add up to it; `evaluation` beside it
    split: bool = False  # whether the phases at seams were measured; if not, their zeros mean nothing: see `measured`
    check: float = 0.0  # Paceline's own checks per step, beside it
    spread: float | None = None  # share of a step by which the slowest worker is behind the others; None: one worker
    slowest: Delay | None = None  # it is worth a look only if `slowest.slow`
    first_loss: float | None = None
    last_loss: float | None = None
    curve: list[float] = []  # losses of the first worker: means of at most CURVE stretches of steps
    memory: int = 0  # peak bytes of the worker with the highest peak

    @property
    def measured(self) -> dict[str, float | None]:
        """`step`, with None for phases that were not measured."""
        return {part: None if part in AT_SEAMS and not self.split else took for part, took in self.step.items()}


def figures(by_rank: Mapping[int, Columns]) -> Figures:
    """The figures of a run from the steps of its workers: see `columns_of` and `columns_in`."""
    by_rank = _made(by_rank)
    step = dict.fromkeys(("total", *PHASES), 0.0)
    if not by_rank:
        return Figures(step=step)
    first = next(iter(by_rank.values()))
    dropped, last = _warm_up(first)
    settled = [_kept(columns, [n > last for n in columns["step"]]) for columns in by_rank.values()]
    counted = _counted(by_rank)
    mine = next(iter(counted.values()))
    took = mine["total"] if not any(mine[EVALUATION]) else _difference(mine["total"], mine[EVALUATION])
    blocks = _blocks(mine["samples"], took)
    step_time, speeds = 0.0, [0.0]
    if blocks:
        speeds = [samples / seconds for _, samples, seconds in blocks]
        count, _, seconds = sorted(blocks, key=lambda each: (each[1] / each[2], -each[2] / each[0]))[len(blocks) // 2]
        step_time = seconds / count
    speed = sorted(speeds)[len(speeds) // 2]
    if recurring := _recurring_waits(settled[0]):
        step_time, speed = recurring
    late = delays(counted, step_time, causes=False)
    losses = [loss for loss in first["loss"] if loss is not None]
    return Figures(
        steps=len(first["step"]),
        samples=sum(first["samples"]),
        batch=mode(first["samples"]),
        warm_up=dropped,
        counted=len(mine["step"]),
        step_time=step_time,
        samples_per_s=speed,
        low=min(*speeds, speed),
        high=max(*speeds, speed),
        step=step | _parts(counted.values(), step_time) | {EVALUATION: _mean(settled, EVALUATION)},
        split=any(any(columns["split"]) for columns in counted.values()),
        check=_mean(settled, "check"),
        spread=late[0].share if late else None,
        slowest=late[0] if late else None,
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        curve=_curve(losses),
        memory=max(max(columns["memory"]) for columns in by_rank.values()),
    )


def read_figures(folder: Path | Folder) -> Figures:
    """The figures of a record, also of a run in progress or killed. RecordError if there is no record."""
    kept = kept_figures(folder)
    if kept is not None:
        return kept
    return figures({worker.rank: columns_of(read_steps(folder, worker.rank)) for worker in read_run(folder).workers})


def keep_figures(folder: Path) -> Figures:
    """Writes the figures of a run that has ended to `figures.json`, and returns them: so a list of many long runs does
    not read all of their steps. A record that cannot be written stays without the file."""
    found = read_figures(folder)
    with contextlib.suppress(OSError, RecordError):
        kept = _Kept(version=VERSION, sizes=_sizes(Folder.of(folder)), figures=found)
        write_file(Path(folder) / FILE, msgspec.json.encode(kept))
    return found


def kept_figures(folder: Path | Folder) -> Figures | None:
    """What `keep_figures` wrote; None if there is nothing, or if the steps have changed since."""
    here = Folder.of(folder)
    try:
        kept = msgspec.json.decode(here.file(FILE).read(LARGEST), type=_Kept)
    except (OSError, RecordError, msgspec.DecodeError, RecursionError):
        return None
    return kept.figures if kept.version == VERSION and kept.sizes == _sizes(here) else None


class _Kept(msgspec.Struct, kw_only=True):
    version: int
    sizes: dict[str, int]  # bytes of the step files that the figures were made from
    figures: Figures


def _sizes(folder: Folder) -> dict[str, int]:
    found = {name: folder.file(name).stat() for name in folder.names("steps.rank*.jsonl")}
    return {name: stat.st_size for name, stat in found.items() if stat is not None}


def columns_of(steps: Sequence[Step]) -> Columns:
    """The steps of one worker, as columns."""
    return {name: [getattr(step, name) for step in steps] for name in FIELDS}


def columns_in(frame: pl.DataFrame) -> dict[int, Columns]:
    """The steps of every worker, from a frame such as `Tables.steps`."""
    parts = frame.partition_by("rank", maintain_order=True)
    return {int(part["rank"][0]): {name: part[name].to_list() for name in FIELDS} for part in parts}


def all_delays(by_rank: Mapping[int, Columns]) -> list[Delay]:
    """The delays of all workers, slowest first, each with its cause. The first is `Figures.slowest`."""
    return delays(_counted(_made(by_rank)), figures(by_rank).step_time)


def warm_up(first: Columns) -> int:
    """The number of warm-up steps of the first rank: until step times are steady, or a third of the steps if they never
    are. Step 1 includes the set-up, allocates memory and picks kernels; the next steps fill buckets in a new order;
    compilation takes any number of steps. Steps under the profiler tell nothing about that."""
    return _warm_up(first)[0] if first["step"] else 0


def counted_steps(first: Columns) -> list[int]:
    """The numbers of the steps that count, from those of the first rank. Steps under the profiler or with evaluation
    count only if there are no others."""
    last = _warm_up(first)[1] if first["step"] else 0
    told = zip(first["step"], first["traced"], first[EVALUATION], strict=True)
    settled = [(number, traced, evaluation) for number, traced, evaluation in told if number > last]
    for wanted in (
        [number for number, traced, evaluation in settled if not traced and not evaluation],
        [number for number, traced, evaluation in settled if not traced],
        [number for number, traced, evaluation in settled if not evaluation],
    ):
        if wanted:
            return wanted
    return [number for number, _, _ in settled]


def _made(by_rank: Mapping[int, Columns]) -> dict[int, Columns]:
    """The workers that made a step, by rank."""
    return {rank: by_rank[rank] for rank in sorted(by_rank) if by_rank[rank]["step"]}


def _counted(by_rank: Mapping[int, Columns]) -> dict[int, Columns]:
    if not by_rank:
        return {}
    wanted = set(counted_steps(next(iter(by_rank.values()))))
    return {rank: _kept(columns, [n in wanted for n in columns["step"]]) for rank, columns in by_rank.items()}


def _warm_up(first: Columns) -> tuple[int, int]:
    """The number of warm-up steps, and the number of the last one."""
    plain = _kept(first, [not traced for traced in first["traced"]])
    plain = plain if plain["step"] else first
    found = settle(_difference(plain["total"], plain[EVALUATION]))
    dropped = len(plain["step"]) // 3 if found is None else found
    last = plain["step"][dropped - 1] if dropped else first["step"][0] - 1
    return sum(number <= last for number in first["step"]), last


def _difference(totals: Sequence[float], parts: Sequence[float]) -> list[float]:
    return [total - part for total, part in zip(totals, parts, strict=True)]


def _kept(columns: Columns, wanted: Sequence[bool]) -> Columns:
    return {name: list(compress(values, wanted)) for name, values in columns.items()}


def _blocks(samples: Sequence[int], took: Sequence[float]) -> list[tuple[int, int, float]]:
    """Steps, samples and seconds of blocks of consecutive steps. Within a block they are summed, so that the smaller
    last batch of an epoch has its proper weight."""
    blocks = min(BLOCKS, len(took))
    blocks -= blocks % 2 == 0 and blocks > 0
    edges = [len(took) * k // blocks for k in range(blocks + 1)] if blocks else []
    found = [(b - a, sum(samples[a:b]), sum(took[a:b])) for a, b in pairwise(edges)]
    return [block for block in found if block[2] > 0]


def _recurring_waits(settled: Columns) -> tuple[float, float] | None:
    """Seconds per step and samples/s of all settled steps together, if long waits for input recur; else None. Steps
    after an evaluation count without it: they often begin an epoch, and wait for its first batch."""
    plain = _kept(settled, [not traced for traced in settled["traced"]])
    took, waits = _difference(plain["total"], plain[EVALUATION]), plain["data"]
    if not took or sum(took) <= 0:
        return None
    usual = median(took)
    long = [at for at, wait in enumerate(waits) if wait > LONG_WAIT * usual]
    # In one third of the run alone, it was an accident.
    if len({3 * at // len(took) for at in long}) < 2 or sum(waits[at] for at in long) < RECURRING * sum(took):
        return None
    return sum(took) / len(took), sum(plain["samples"]) / sum(took)


def _parts(by_rank: Collection[Columns], step_time: float) -> dict[str, float]:
    """The phases of a step, over all workers: their shares of the steps that were split, times the step time. Where
    none was split, the phases at seams are part of `other`."""
    told = list(by_rank)
    is_split = any(any(columns["split"]) for columns in told)
    if is_split:
        told = [_kept(columns, columns["split"]) for columns in told]
    whole = sum(sum(_difference(columns["total"], columns[EVALUATION])) for columns in told)
    parts = {part: sum(sum(columns[part]) for columns in told) for part in PHASES if part != EVALUATION}
    if not is_split:
        parts[OTHER] += sum(parts[part] for part in AT_SEAMS)
        parts |= dict.fromkeys(AT_SEAMS, 0)
    scale = step_time / whole if whole > 0 else 0.0
    return {"total": step_time} | {part: seconds * scale for part, seconds in parts.items()}


def _curve(losses: Sequence[float]) -> list[float]:
    parts = min(CURVE, len(losses))
    edges = [len(losses) * k // parts for k in range(parts + 1)] if parts else []
    return [float(f"{fmean(losses[a:b]):.6g}") for a, b in pairwise(edges)]


def _mean(settled: Collection[Columns], part: str) -> float:
    """Seconds of this part per step, as a mean over steps and workers."""
    told = [value for columns in settled for value in columns[part]]
    return sum(told) / len(told) if told else 0.0
