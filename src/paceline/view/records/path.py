"""The critical path through the drawn steps, for the time line."""

from __future__ import annotations

import msgspec
import polars as pl

from paceline.errors import RecordError
from paceline.tables.critical_path import critical_path
from paceline.view.records.layout import StepSpans
from paceline.view.records.record import Opened
from paceline.view.records.spans import MOST, prove_steps, spans_of
from paceline.view.records.traced_spans import parts_of, readable


class PathSpans(msgspec.Struct, kw_only=True):
    """The critical path. A piece is (span, or -1 if it is not drawn; rank; kind; start; end), in nanoseconds.
    `totals`: (kind, name, seconds, pieces, longest piece), longest first."""

    length: int
    pieces: list[tuple[int, int, str, int, int]]
    totals: list[tuple[str, str, float, int, int]]
    note: str = ""


OUTSIDE = "outside of any event: Python, or an op that was not traced"


def path_of(record: Opened, step: int, until: int, *, most: int = MOST) -> PathSpans:
    """The critical path of these steps. Raises RecordError if there is no trace."""
    prove_steps(record, step, until)
    if not record.trace_paths:
        raise RecordError(
            f"{record.name} has no trace, from which a critical path could be found.",
            advice="Make one: paceline profile train.py",
        )

    def find() -> PathSpans:
        parts, together = parts_of(record.tables.traces, step, until)
        note = ""
        if not together:  # the ranks cannot be compared: the path of the slowest one
            parts = [max(parts, key=lambda part: part.end - part.start)]
            note = f"The ranks' clocks differ: the path of rank {parts[0].trace.rank} alone."
        return _told(critical_path(parts), record, spans_of(record, step, until, most=most), note)

    return record.once(f"Finding the critical path of steps {step} to {until}", find, instead="Critical path")


def _told(path: pl.DataFrame, record: Opened, spans: StepSpans, note: str) -> PathSpans:
    traces = {trace.rank: trace for trace in record.tables.traces}
    places = {rank: spans.places(rank, traces[rank].events.height).tolist() for rank in path["rank"].unique()}
    pieces, names = [], []
    for rank, event, kind, start, end in path.rows():
        name = traces[rank].events["name"][event] if event >= 0 else OUTSIDE
        names.append(readable(name))
        pieces.append((places[rank][event] if event >= 0 else -1, rank, kind, start, end))
    table = pl.DataFrame(
        {"kind": path["kind"], "name": names, "length": path["end"] - path["start"], "piece": range(len(pieces))},
        schema_overrides={"name": pl.String},
    )
    totals = (
        table.group_by("kind", "name", maintain_order=True)
        .agg(pl.col("length").sum() / 1e9, pl.len(), pl.col("piece").sort_by("length").last())
        .sort("length", descending=True)
    )
    return PathSpans(length=int(table["length"].sum()), pieces=pieces, totals=totals.rows(), note=note)
