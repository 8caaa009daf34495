"""Opens a record for the tables and the rules.

`read_record` takes the folder of a run, `read_files` traces that were written elsewhere. Traces are read at their first
use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import polars as pl

from paceline.errors import RecordError
from paceline.record import Run, Step, read_run, read_steps
from paceline.record.folder import TRACES
from paceline.record.inside import File, Folder
from paceline.tables.trace.columns import Trace, rank_in
from paceline.tables.trace.parallel import read_together
from paceline.tables.trace.time_limit import go_on


@dataclass(frozen=True)
class Tables:
    """The contents of one run's record. For traces from elsewhere `run` is None and `steps` is empty."""

    folder: Path | Folder | None
    run: Run | None
    steps: pl.DataFrame  # every step of every rank: rank, and the fields of `record.schema.Step`; seconds
    paths: tuple[Path | File, ...]  # of traces

    @cached_property
    def traces(self) -> list[Trace]:
        """One trace per rank, sorted by rank. TraceError if a file is damaged."""
        return aligned(read_together(self.paths), self.run)

    def over_ranks(self, table: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
        """A table of all ranks, concatenated. Needs at least one trace."""
        found = []
        for trace in self.traces:
            go_on()
            found.append(table(trace))
        return pl.concat(found)


def aligned(traces: Sequence[Trace], run: Run | None) -> list[Trace]:
    """The traces on the clock of the launcher: those of workers on other hosts are moved by what these clocks were
    ahead in the middle of the trace."""
    clocks = {worker.rank: worker.clock for worker in run.workers} if run is not None else {}
    moved = []
    for trace in traces:
        if (clock := clocks.get(trace.rank)) is not None and trace.events.height:
            start, end = trace.events["start"].min(), trace.events["end"].max()
            middle = trace.base + (int(start) + int(end)) // 2  # type: ignore[arg-type]
            ahead = round(clock.ahead(middle / 1e9) * 1e9)
            trace = replace(trace, base=trace.base - ahead, ahead=ahead)
        moved.append(trace)
    return moved


def read_record(folder: Path) -> Tables:
    """The record of a run. RecordError if there is none."""
    folder = Path(folder)
    run = read_run(folder)
    return Tables(
        folder=folder,
        run=run,
        steps=steps_of(folder, [worker.rank for worker in run.workers]),
        paths=trace_files(Folder(folder)),
    )


def trace_files(folder: Folder) -> tuple[File, ...]:
    """The traces of a record, by rank."""
    names = [name for pattern in TRACES for name in folder.names(pattern)]
    return tuple(map(folder.file, sorted(names, key=lambda name: (rank_in(name) or 0, name))))


def read_files(paths: Sequence[Path]) -> Tables:
    """Traces from elsewhere, one per rank. RecordError if none is given."""
    if not paths:
        raise RecordError("--trace names no file.", advice="Type: paceline profile --trace FILE")
    return Tables(folder=None, run=None, steps=steps_frame({}), paths=tuple(Path(path) for path in paths))


def steps_of(folder: Path, ranks: Sequence[int]) -> pl.DataFrame:
    """The step records of these ranks."""
    return steps_frame({rank: read_steps(folder, rank) for rank in ranks})


def steps_frame(by_rank: dict[int, list[Step]]) -> pl.DataFrame:
    """One row per rank and step, sorted by both."""
    rows = [{"rank": rank, **msgspec.structs.asdict(step)} for rank, steps in by_rank.items() for step in steps]
    return pl.DataFrame(rows, schema=STEPS, orient="row").sort("rank", "step")


_TYPES = {"int": pl.Int64, "float": pl.Float64, "bool": pl.Boolean, "float | None": pl.Float64}
STEPS = {"rank": pl.Int64, **{name: _TYPES[str(Step.__annotations__[name])] for name in Step.__struct_fields__}}
