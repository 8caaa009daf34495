"""The workload of a plan: what the record of a real run says about one step of one worker.

Read from the record of a run, or from a series (`plan --measure`, `scale`, `sweep`) with a run of each trial:

- compute by rows: own seconds of a step and its phases, from the medians of each run; between measured numbers of rows
  the time is interpolated, beyond them it goes on along the nearest two;
- gradients: their bytes, and when in the backward each of them was ready (a run with several workers and `--timeline`);
- the scatter of a worker's own work from step to step, which makes others wait;
- memory by rows, small exchanges of a step, the gradient noise scale.

What the record does not say stands in `unknown`, for the output.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from paceline.errors import RecordError
from paceline.record import Step, read_run, read_steps
from paceline.record.facts import read_facts
from paceline.record.logged import read_logged
from paceline.record.noise import read_noise
from paceline.record.schema import Run
from paceline.record.timeline import Span, read_spans
from paceline.tables.figures import columns_of, counted_steps, figures

FEWEST = 3  # counted steps of a run that is used
GRAIN = 64  # pieces of gradients whose order is unknown
FIRST = 1 << 20  # bytes of the first bucket at most, as `comm.buckets` has it
STATES = {"Adam": 2, "AdamW": 2, "Adamax": 2, "NAdam": 2, "RAdam": 2, "LAMB": 2, "SGD": 1, "LARS": 1, "RMSprop": 1}
ADVICE = "Measure the script: paceline plan --measure train.py"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Median seconds of one worker's step with so many rows. `spread`: relative deviation of blocks of steps."""

    rows: float
    forward: float
    backward: float
    update: float  # the optimizer, and what else the script does
    data: float
    memory: int = 0
    spread: float = 0.0

    @property
    def compute(self) -> float:
        return self.forward + self.backward + self.update


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the record, as it was measured: what a prediction is checked against."""

    name: str
    workers: int
    hosts: int
    batch: int
    seconds: float  # of a step


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one worker. `ready`: buckets of gradients in the order of the backward: bytes, and the fractions of
    the backward after which its first and its last gradient are ready."""

    name: str
    batch: int  # of the script, over all workers
    points: tuple[Point, ...]  # by rows
    ready: tuple[tuple[float, float, float], ...] = ()
    scatter: tuple[float, ...] = (1.0,)  # own work of a step, relative to its mean; sorted
    messages: float = 0.0  # small exchanges of a step
    exchange: float = (
        0.0  # seconds that these and the last bucket take in the record's memory: the cost of the software
    )
    parameters: int = 0  # bytes
    states: int = 0  # tensors of the optimizer as large as the parameters
    device: str = "CPU"
    threads: int = 0
    cut: float = 0.0  # bytes of one row's activations between two blocks of the model; 0: unknown
    blocks: int = 0
    critical: float = 0.0  # the critical batch; 0: unknown
    samples_seen: float = 0.0  # samples to the accuracy that was asked for; 0: unknown
    known: tuple[Known, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def gradients(self) -> float:
        return sum(bucket[0] for bucket in self.ready)

    @property
    def spread(self) -> float:
        return max(point.spread for point in self.points)

    def at(self, rows: float, part: Callable[[Point], float]) -> float:
        """A part of the step with so many rows."""
        points = self.points
        if len(points) == 1:  # no fixed cost is known
            return part(points[0]) * rows / points[0].rows
        at = min(max(bisect_left([point.rows for point in points], rows), 1), len(points) - 1)
        a, b = points[at - 1], points[at]
        slope = (part(b) - part(a)) / (b.rows - a.rows)
        if rows < a.rows:  # towards a fixed cost, which is neither below zero nor above the smallest measurement
            fixed = min(max(part(a) - slope * a.rows, 0.0), part(a))
            return fixed + (part(a) - fixed) * rows / a.rows
        return part(b) + max(slope, 0.0) * (rows - b.rows) if rows > b.rows else part(a) + slope * (rows - a.rows)

    def behind(self, workers: int) -> float:
        """How much longer the slowest of N workers takes than the mean worker, as a share of the work: the expected
        largest of N draws from the measured scatter."""
        count = len(self.scatter)
        shares = [((n + 1) / count) ** workers - (n / count) ** workers for n in range(count)]
        return max(sum(a * b for a, b in zip(self.scatter, shares, strict=True)) - 1.0, 0.0) if workers > 1 else 0.0

    def buckets(self, size: float) -> list[tuple[float, float]]:
        """The gradients in buckets of at most `size` bytes, the first of at most FIRST: bytes, and the fraction of the
        backward after which it is sent. A bucket that was measured is cut only if it is larger; its gradients are taken
        as even between the first and the last."""
        found: list[tuple[float, float]] = []
        filled, when, limit = 0.0, 0.0, min(size, FIRST)
        for bucket, first, last in self.ready:
            if filled and filled + bucket > limit:
                found.append((filled, when))
                filled, limit = 0.0, size
            if bucket > size:
                parts = math.ceil(bucket / size)
                found += [(bucket / parts, first + (last - first) * (n + 1) / parts) for n in range(parts)]
                limit = size
            else:
                filled, when = filled + bucket, last
        return [*found, (filled, when)] if filled else found


def read_workload(folder: Path, *, accuracy: float | None = None, leave_out: str = "") -> Workload:
    """The workload of a record: a run's, or a series'. RecordError if it has no steps. `leave_out`: the name of a run
    of the series that is not read, so that it can be predicted."""
    head = read_run(folder)
    folders = sorted(path.parent for path in folder.glob("trials/*/run.json")) or [folder]
    runs = [run for each in folders if each.name != leave_out and (run := _read(each))]
    if not runs:
        raise RecordError(
            f"--record {folder}: this record has no run with at least {FEWEST} steps after warm-up whose phases were "
            f"measured; found {len(folders)} run{'' if len(folders) == 1 else 's'} of {head.verb}.",
            advice=ADVICE,
        )
    threads = Counter(run.threads for run in runs).most_common(1)[0][0]
    used = [run for run in runs if run.threads == threads]
    unknown: list[str] = []
    if len(used) < len(runs):
        unknown.append(f"{len(runs) - len(used)} of {len(runs)} runs had another number of threads, and are left out")
    points = _points(used)
    if len(points) == 1:
        unknown.append(
            "compute by rows: only one number of rows was measured, so a step is taken as proportional to it"
        )
    ready, messages, exchange = _communication(used, unknown)
    facts = next((found for run in used if (found := read_facts(run.folder, 0))), None)
    models = facts.models if facts else []
    parameters = max((model.bytes for model in models), default=int(sum(bucket[0] for bucket in ready)))
    if not ready and parameters:
        ready = tuple((parameters / GRAIN, n / GRAIN, (n + 1) / GRAIN) for n in range(GRAIN))
        unknown.append("the order of gradients (no timeline): taken as even over the backward")
    if not ready:
        unknown.append("bytes of gradients: communication is not predicted. " + ADVICE)
    optimizers = facts.optimizers if facts else []
    if not optimizers:
        unknown.append("the optimizer: its state is taken as 2 × the parameters")
    if not any(point.memory for point in points):
        unknown.append("memory of a step")
    unknown.append("links that other jobs use, and faults: predictions are for a cluster of one's own")
    first = used[0]
    return Workload(
        name=Path(head.script).name,
        batch=min(used, key=lambda run: (any(mod.startswith("batch") for mod in run.run.mods), len(run.steps))).batch,
        points=points,
        ready=ready,
        scatter=_scatter(used),
        messages=messages,
        exchange=exchange,
        parameters=parameters,
        states=max((STATES.get(one.name, 2) if one.momentum else 0 for one in optimizers), default=2),
        device="GPU" if any(worker.gpus for worker in first.run.workers) else "CPU",
        threads=threads,
        critical=_critical(used),
        samples_seen=_samples_to(used, accuracy) if accuracy else 0.0,
        known=tuple(run.known for run in used),
        unknown=tuple(unknown),
    )


class _Read(msgspec.Struct, kw_only=True):
    folder: Path
    run: Run
    steps: list[list[Step]]  # of each rank, those that count
    every: list[Step]  # of rank 0
    batch: int
    threads: int
    known: Known
    spread: float


def _read(folder: Path) -> _Read | None:
    """A finished run; None if too few of its steps can be used."""
    try:
        run = read_run(folder)
        by_rank = [read_steps(folder, worker.rank) for worker in run.workers]
    except RecordError:
        return None
    if not by_rank or not all(by_rank):
        return None
    found = figures({rank: columns_of(steps) for rank, steps in enumerate(by_rank)})
    wanted = set(counted_steps(columns_of(by_rank[0])))
    kept = [[step for step in steps if step.step in wanted and step.split and step.samples] for steps in by_rank]
    if any(len(steps) < FEWEST for steps in kept):
        return None
    own = [worker.threads for worker in run.workers if not worker.gpus]
    return _Read(
        folder=folder,
        run=run,
        steps=kept,
        every=by_rank[0],
        batch=found.batch,
        threads=max(own, default=0),
        known=Known(
            name=folder.name,
            workers=len(run.workers),
            hosts=len({worker.host for worker in run.workers}),
            batch=found.batch,
            seconds=found.step_time,
        ),
        spread=(found.high - found.low) / 2 / found.samples_per_s if found.samples_per_s else 0.0,
    )


def _points(runs: Sequence[_Read]) -> tuple[Point, ...]:
    by_rows: dict[float, list[Point]] = {}
    for run in runs:
        workers = len(run.steps)
        steps = [step for steps in run.steps for step in steps if step.samples == run.batch] or [
            step for steps in run.steps for step in steps
        ]
        middle = {part: median(getattr(step, part) for step in steps) for part in ("forward", "backward", "data")}
        rows = run.batch / workers
        by_rows.setdefault(rows, []).append(
            Point(
                rows=rows,
                **middle,
                update=median(step.optimizer + step.other for step in steps),
                memory=max(step.memory for step in steps),
                spread=run.spread,
            )
        )
    return tuple(_middle(by_rows[rows]) for rows in sorted(by_rows))


def _middle(points: Sequence[Point]) -> Point:
    """One point for repeated measurements; what they differ by is spread, too."""
    totals = [point.compute for point in points]
    apart = (max(totals) - min(totals)) / 2 / fmean(totals) if fmean(totals) else 0.0
    return msgspec.structs.replace(
        sorted(points, key=lambda point: point.compute)[len(points) // 2],
        spread=max(apart, *(point.spread for point in points)),
        memory=max(point.memory for point in points),
    )


def _scatter(runs: Sequence[_Read]) -> tuple[float, ...]:
    """Own work of each step and worker, relative to the mean of its run: without waiting for others, and without the
    smaller last batch of an epoch."""
    found: list[float] = []
    for run in runs:
        own = [s.total - s.communication - s.evaluation for steps in run.steps for s in steps if s.samples == run.batch]
        mean = fmean(own) if own else 0.0
        found += [value / mean for value in own] if mean > 0 else []
    mean = fmean(found) if found else 1.0
    return tuple(sorted(value / mean for value in found)) or (1.0,)


def _communication(
    runs: Sequence[_Read], unknown: list[str]
) -> tuple[tuple[tuple[float, float, float], ...], float, float]:
    """When gradients were ready, the number of small exchanges of a step, and their seconds: from a run's timeline. The
    worker that comes last waits for the exchange only: the shortest wait of a step."""
    for run in sorted(runs, key=lambda run: -len(run.steps)):
        spans = read_spans(path) if (path := run.folder / "timeline.rank0.jsonl").exists() else []
        buckets: dict[int, list[tuple[float, float, float]]] = {}
        for span in spans:
            if span.track.startswith("bucket") and span.name == "ready":
                buckets.setdefault(span.about["step"], []).append((span.about["bytes"], span.start, span.end))
        typical = Counter(len(each) for each in buckets.values()).most_common(1)
        steps = [step for step, each in buckets.items() if typical and len(each) == typical[0][0]]
        if not steps:
            continue
        backwards = _backwards(spans)
        found = [each for step in steps if (each := _fractions(buckets[step], backwards))]
        if not found:
            continue
        ready = tuple(
            (same[0][0], median(bucket[1] for bucket in same), median(bucket[2] for bucket in same))
            for same in zip(*found, strict=True)
        )
        phases = [span for span in spans if span.track == "phases"]
        waits = sum(span.name == "communication" for span in phases)
        own = sum(span.track == "waiting for buckets" for span in spans)
        told = {
            n: [step.communication for steps in run.steps for step in steps if step.step == n]
            for n in {step.step for step in run.steps[0]}
        }
        return ready, max(waits - own, 0) / max(len(run.every), 1), median(min(each) for each in told.values())
    if all(len(run.steps) < 2 for run in runs):
        unknown.append("small exchanges of a step: no run with several workers")
    return (), 0.0, 0.0


def _backwards(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """The beginning and the end of each backward: spans of that phase, with the waits between them."""
    found: list[tuple[float, float]] = []
    last = ""
    for span in sorted((span for span in spans if span.track == "phases"), key=lambda span: span.start):
        name, start, end = span.name, span.start, span.end
        if name == "backward" and last in ("backward", "communication") and found:
            found[-1] = (found[-1][0], end)
        elif name == "backward":
            found.append((start, end))
        if name != "communication" or last not in ("backward", "communication"):
            last = name
    return found


def _fractions(
    buckets: Sequence[tuple[float, float, float]], backwards: Sequence[tuple[float, float]]
) -> list[tuple[float, float, float]]:
    """The buckets of one step in the order of sending, with fractions of the backward for times."""
    begin, end = min(b[1] for b in buckets), max(b[2] for b in buckets)
    around = next(((a, b) for a, b in backwards if a <= begin and end <= b + 1e-6), None)
    if around is None or around[1] <= around[0]:
        return []
    ordered = sorted(buckets, key=lambda bucket: bucket[2])
    start, length = around[0], around[1] - around[0]
    return [(size, (first - start) / length, (last - start) / length) for size, first, last in ordered]


def _critical(runs: Sequence[_Read]) -> float:
    """The critical batch; 0 if no noise was measured, or if it hides the gradient."""
    from paceline.converge.noise.critical_batch import critical_batch

    lines = [line for run in runs for line in read_noise(run.folder)]
    found = critical_batch(lines).batch if lines else 0.0
    return found if math.isfinite(found) else 0.0


def _samples_to(runs: Sequence[_Read], accuracy: float) -> float:
    """The fewest samples after which a run logged this accuracy (`paceline.log`); 0 if none did."""
    found = []
    for run in runs:
        seen = {step.step: 0 for step in run.every}
        total = 0
        for step in run.every:
            total += step.samples
            seen[step.step] = total
        for line in read_logged(run.folder):
            values = [v for name, v in line.numbers.items() if "acc" in name and v is not None]
            if any((value / 100 if value > 1 else value) >= accuracy for value in values):
                found.append(seen.get(line.step, total))
                break
    return float(min(found, default=0))
