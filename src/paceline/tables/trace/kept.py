"""Keeps the columns of a large trace beside its file, so that the next program to open the record need not parse it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl

from paceline.record.inside import File
from paceline.tables.trace import column_file
from paceline.tables.trace.column_file import DAMAGED, ColumnFile, Integers
from paceline.tables.trace.columns import EVENTS, KIND, LATEST, LONGEST_NAME, MEMORY, MOST_NAMES, Trace
from paceline.tables.trace.json_reader import Head

WORTH_IT = 20_000  # events; fewer are parsed in a moment
_CODED = ("name", "shapes", "types")


class _Kept(msgspec.Struct, kw_only=True):
    rank: int
    world: int
    base: int
    head: Head
    threads: list[tuple[int, int, str]]
    texts: dict[str, list[str]]


def keep(trace: Trace) -> bool:
    """Writes the copy of a trace, if the trace is large. Returns whether there is one now: a folder that cannot be
    written, or that belongs to another account, has none."""
    if trace.events.height < WORTH_IT:
        return False
    file = File.of(trace.path)
    arrays = {f"memory.{name}": trace.memory[name].to_numpy() for name in MEMORY}
    texts = {}
    for name in EVENTS:
        column = trace.events[name]
        if isinstance(column.dtype, pl.Enum):
            if name in _CODED:
                texts[name] = column.dtype.categories.to_list()
            column = column.to_physical()
        arrays[name] = column.to_numpy()
    arrays["end"] = arrays["end"] - arrays["start"]  # lengths are small numbers
    head = _Kept(
        rank=trace.rank,
        world=trace.world,
        base=trace.base + trace.ahead,
        head=trace.head,
        threads=[(*who, label) for who, label in trace.threads.items()],
        texts=texts,
    )
    return column_file.write(file.folder, file.name + column_file.ENDING, head, arrays, of=[file])


def read_kept(path: Path | File, *, most: int) -> Trace | None:
    """The trace of this file from its copy; None if there is no copy of exactly this file, or none with at most `most`
    events."""
    file = File.of(path)
    try:
        found = column_file.read(file.folder.file(file.name + column_file.ENDING), _Kept, of=[file])
        if found is None or found.count("kind") + found.count("memory.time") > most:
            return None
        return _decoded(path, found)
    except (*DAMAGED, pl.exceptions.PolarsError):
        return None


def _decoded(path: Path | File, found: ColumnFile[_Kept]) -> Trace:
    head, start = found.head, found.numbers("start", least=-1000 * LATEST, most=1000 * LATEST)
    columns = []
    for name, dtype in EVENTS.items():
        if name in _CODED:
            known = head.texts[name]
            if len(known) > MOST_NAMES or any(len(text) > LONGEST_NAME for text in known):
                raise ValueError(name)
            columns.append(_gathered(found, name, pl.Series(known, dtype=pl.String), pl.Enum(known)))
        elif dtype == KIND:
            columns.append(_gathered(found, name, KIND.categories, KIND))
        else:
            values: Integers = start
            if name == "end":
                values = start + found.numbers(name, least=0, most=1000 * LATEST)
            elif name != "start":
                values = found.numbers(name)
            columns.append(pl.Series(name, values).cast(dtype))
    return Trace(
        path=path,
        rank=head.rank,
        world=head.world,
        base=head.base,
        events=pl.DataFrame(columns),
        memory=pl.DataFrame(
            [pl.Series(name, found.numbers(f"memory.{name}")).cast(dtype) for name, dtype in MEMORY.items()]
        ),
        head=head.head,
        threads={(process, thread): label for process, thread, label in head.threads},
    )


def _gathered(found: ColumnFile[_Kept], name: str, texts: pl.Series, form: pl.Enum) -> pl.Series:
    return texts.cast(form).gather(found.numbers(name, least=0, most=len(texts) - 1)).alias(name)
