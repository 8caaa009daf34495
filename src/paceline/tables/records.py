"""Opens a record for the tables and the rules.

`read_record` takes the folder of a run, `read_files` traces that were written elsewhere. Traces are read at their first
use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
        return read_together(self.paths)

    def over_ranks(self, table: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
        """A table of all ranks, concatenated. Needs at least one trace."""
        found = []
        for trace in self.traces:
            go_on()
            found.append(table(trace))
        return pl.concat(found)


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
