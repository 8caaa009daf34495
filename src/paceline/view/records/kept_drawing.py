"""Keeps a long time line as it was laid out, beside the record's traces: the next server draws it without them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from paceline.tables.gaps import CAUSE
from paceline.tables.gaps import SCHEMA as GAPS
from paceline.tables.trace import column_file
from paceline.tables.trace.column_file import DAMAGED, ColumnFile
from paceline.tables.trace.columns import LATEST
from paceline.view.records.layout import KINDS, StepMark, StepSpans, Track
from paceline.view.records.reading import FROM_ELSEWHERE
from paceline.view.records.record import Opened

WORTH_IT = 100_000  # spans; fewer are laid out in a moment
_LAST = 1000 * LATEST  # nanoseconds
_SPANS = ("start", "length", "name", "kind", "event")
_LINKS = ("link_from", "link_to", "link_kind")


class _Drawn(msgspec.Struct, kw_only=True):
    known: list[int]  # all steps that can be drawn
    step: int
    until: int
    most: int  # spans that were allowed
    end: int
    names: list[str]
    tracks: list[Track]
    steps: list[StepMark]
    left_out: int
    note: str


def keep_drawing(record: Opened, spans: StepSpans, known: Sequence[int], most: int) -> bool:
    """Keeps the drawing of these steps, if it is long, in the place of the one that was kept before."""
    if len(spans.start) < WORTH_IT or record.run.verb == FROM_ELSEWHERE or not record.trace_paths:
        return False
    assert spans.gaps is not None
    head = _Drawn(
        known=list(known),
        most=most,
        **{name: getattr(spans, name) for name in ("step", "until", "end", "names", "tracks", "steps")},
        left_out=spans.left_out,
        note=spans.note,
    )
    columns = {name: getattr(spans, name) for name in (*_SPANS, *_LINKS)}
    columns |= {f"gap.{name}": spans.gaps[name].to_physical().to_numpy() for name in GAPS}
    return column_file.write(record.folder, _NAME, head, columns, of=record.trace_paths)


_NAME = "timeline" + column_file.ENDING


def kept_steps(record: Opened) -> list[int] | None:
    """All steps of a record that can be drawn, if a drawing was kept."""
    found = _read(record)
    return found.head.known if found is not None else None


def kept_drawing(record: Opened, step: int, until: int, most: int) -> StepSpans | None:
    """The drawing of these steps, if it was kept."""
    found = _read(record)
    if found is None or (found.head.step, found.head.until, found.head.most) != (step, until, most):
        return None
    try:
        return _decoded(found)
    except (*DAMAGED, pl.exceptions.PolarsError):
        return None


def _read(record: Opened) -> ColumnFile[_Drawn] | None:
    """Read once; a record that changes is opened anew."""
    if not record.trace_paths:
        return None
    file = record.folder.file(_NAME)
    return record.once("Reading the kept time line", lambda: column_file.read(file, _Drawn, of=record.trace_paths))


def _decoded(found: ColumnFile[_Drawn]) -> StepSpans:
    head = found.head
    rows = [count for track in head.tracks for count in track.rows]
    spans = {
        "start": found.numbers("start", least=-_LAST, most=_LAST),
        "length": found.numbers("length", least=0, most=_LAST),
        "name": found.numbers("name", least=0, most=len(head.names) - 1),
        "kind": found.numbers("kind", least=0, most=len(KINDS) - 1),
        "event": found.numbers("event", least=-1),
    }
    count = len(spans["start"])
    links = {
        "link_from": found.numbers("link_from", least=0, most=count - 1),
        "link_to": found.numbers("link_to", least=0, most=count - 1),
        "link_kind": found.numbers("link_kind", least=0, most=1),
    }
    if min(rows, default=0) < 0 or {sum(rows)} != {len(values) for values in spans.values()}:
        raise ValueError("rows")
    if len({len(values) for values in links.values()}) > 1 or not 0 <= head.end <= _LAST:
        raise ValueError("links")
    gaps = {name: found.numbers(f"gap.{name}", least=None if name in ("start", "end") else -1) for name in GAPS}
    causes = pl.Series("cause", list(CAUSE.categories), dtype=CAUSE)
    if len(gaps["cause"]) and not 0 <= int(gaps["cause"].min()) <= int(gaps["cause"].max()) < len(causes):
        raise ValueError("cause")
    frame = {name: causes.gather(values) if name == "cause" else values for name, values in gaps.items()}
    return StepSpans(
        step=head.step,
        until=head.until,
        end=head.end,
        names=head.names,
        tracks=head.tracks,
        steps=head.steps,
        start=spans["start"],
        length=spans["length"],
        name=spans["name"],
        kind=spans["kind"],
        event=spans["event"],
        link_from=links["link_from"],
        link_to=links["link_to"],
        link_kind=links["link_kind"],
        gaps=pl.DataFrame(frame, schema=GAPS),
        left_out=head.left_out,
        note=head.note,
    )
