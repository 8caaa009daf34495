"""Workloads and records whose every number is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.plan.workload import Point, Workload
from paceline.record import Outcome, Run, Step, StepWriter, WorkerInfo, write_run
from paceline.record.timeline import Span

MB = 1e6


def even(size: float, pieces: int = 64) -> tuple[tuple[float, float, float], ...]:
    """Gradients that become ready evenly over the backward."""
    return tuple((size / pieces, n / pieces, (n + 1) / pieces) for n in range(pieces))


def at_end(size: float) -> tuple[tuple[float, float, float], ...]:
    """One bucket at the end of the backward: nothing overlaps."""
    return ((size, 1.0, 1.0),)


def work(seconds: float, rows: float, ready: tuple[tuple[float, float, float], ...] = (), **more: object) -> Workload:
    """A step of so many seconds, a third of it forward."""
    point = Point(rows=rows, forward=seconds / 3, backward=seconds * 2 / 3, update=0.0, data=0.0)
    return Workload(name="train.py", batch=int(rows), points=(point,), ready=ready, **more)  # type: ignore[arg-type]


def steps(own: float, *, samples: int, communication: float = 0.0, count: int = 20, memory: int = 0) -> list[Step]:
    """Steps that are all alike: a quarter of the work forward, three quarters backward."""
    return [
        Step(
            step=n + 1,
            at=1000.0 + n,
            samples=samples,
            total=own + communication,
            data=0.0,
            forward=own / 4,
            backward=own * 3 / 4,
            communication=communication,
            optimizer=0.0,
            loss=1.0,
            memory=memory,
        )
        for n in range(count)
    ]


def write_record(folder: Path, by_rank: Sequence[Sequence[Step]]) -> None:
    """A record of a run that ended well."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, told in enumerate(by_rank):
        writer = StepWriter(folder / f"steps.rank{rank}.jsonl")
        writer.append(*told)
        writer.close()
    workers = [WorkerInfo(rank=r, host="here", pid=1, cores=[r], threads=1) for r in range(len(by_rank))]
    outcome = Outcome(exit_code=0, seconds=12.5, view="batch", steps=len(by_rank[0]) if by_rank else 0)
    run = Run(paceline="0", verb="run", script="train.py", arguments=[], settings={}, workers=workers, outcome=outcome)
    write_run(folder, run)


def write_series(folder: Path) -> Path:
    """One worker with 64 and 16 rows, and two with 32 each: a step is 20 ms and 5 ms for each row. Two buckets of 1 MB
    are ready after half and after all of the backward; a step has two small exchanges of 1 ms each."""
    for name, workers, samples in (("workers1", 1, 64), ("workers1-quarter", 1, 16), ("workers2", 2, 64)):
        own = 0.02 + 0.005 * samples / workers
        told = [steps(own, samples=samples, communication=0.002 * (workers > 1)) for _ in range(workers)]
        write_record(folder / "trials" / name, told)
    write_record(folder, [steps(0.1, samples=64)])
    spans = []
    for n in range(20):
        start = 1000.0 + n
        backward = 0.18 * 3 / 4
        phases = [("forward", 0.0, 0.045), ("communication", 0.045, 0.046), ("other", 0.046, 0.047)]
        phases += [("backward", 0.05, 0.05 + backward), ("communication", 0.05 + backward, 0.051 + backward)]
        phases += [("optimizer", 0.051 + backward, 0.052 + backward)]
        spans += [Span("phases", name, start + a, start + b) for name, a, b in phases]
        for bucket in range(2):
            about = {"step": n + 1, "bytes": 1_000_000}
            first = start + 0.05 + backward * bucket / 2
            spans.append(Span(f"bucket {bucket}", "ready", first, first + backward / 2, about))
    lines = b"".join(msgspec.json.encode(span) + b"\n" for span in spans)
    (folder / "trials" / "workers2" / "timeline.rank0.jsonl").write_bytes(lines)
    return folder
