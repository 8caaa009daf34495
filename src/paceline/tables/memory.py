"""Memory over time, by the phase in which it was allocated.

A trace contains every block that was allocated and freed while it ran. A block from forward that stays allocated holds
activations; from backward, gradients; from the optimizer, its state. Memory allocated before the trace began (mostly
weights, and during training also the optimizer's state) is called `before`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.record.phases import PHASES
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import Integers, Spans
from paceline.tables.trace.steps import phases
from paceline.tables.trace.time_limit import paced

CATEGORIES = ("before", *PHASES)


def memory(trace: Trace, *, points: int = 2000) -> pl.DataFrame:
    """Memory over time: rank, device (-1: the host), time (seconds since the trace's first event), allocated, reserved
    (bytes), and the parts of allocated: before, and the bytes allocated in each phase (see CATEGORIES). With more
    changes than `points`, only the peak of each time interval is kept."""
    tables = _by_device(trace)
    return pl.concat([_thinned(table, points) for table in tables]) if tables else pl.DataFrame(schema=SCHEMA)


def memory_peaks(trace: Trace) -> pl.DataFrame:
    """The moment of peak memory of each device: a row of `memory`, exact."""
    tables = _by_device(trace)
    peaks = [table.row(table["allocated"].arg_max() or 0) for table in tables]
    return pl.DataFrame(peaks, schema=SCHEMA, orient="row").sort("device")


SCHEMA = {
    "rank": pl.Int64,
    "device": pl.Int64,
    "time": pl.Float64,
    "allocated": pl.Int64,
    "reserved": pl.Int64,
    **dict.fromkeys(CATEGORIES, pl.Int64),
}


def _by_device(trace: Trace) -> list[pl.DataFrame]:
    if not trace.memory.height:
        return []
    during = phases(trace)
    groups = trace.memory.sort("time").group_by("device", maintain_order=True)
    return [_of_device(trace, during, rows) for _, rows in groups]


def _of_device(trace: Trace, during: dict[str, Spans], rows: pl.DataFrame) -> pl.DataFrame:
    times, change = rows["time"].to_numpy(), rows["bytes"].to_numpy()
    born = _born(during, times)
    category = _categories(rows["address"].to_list(), change.tolist(), born.tolist())
    columns = {name: np.cumsum(np.where(category == number, change, 0)) for number, name in enumerate(CATEGORIES)}
    allocated = rows["allocated"].to_numpy()
    # A freed block that was never allocated in the trace existed before; the total counter gives its size.
    known = sum(columns[name] for name in PHASES)
    columns["before"] = allocated - known
    first = int(trace.events["start"].to_numpy().min()) if trace.events.height else int(times[0])
    return pl.DataFrame(
        {
            "rank": np.full(len(times), trace.rank),
            "device": rows["device"].cast(pl.Int64),
            "time": (times - first) / 1e9,
            "allocated": allocated,
            "reserved": rows["reserved"],
            **columns,
        },
        schema=SCHEMA,
    )


def _born(during: dict[str, Spans], times: Integers) -> Integers:
    """The category index for allocations at each of these times."""
    found = np.full(len(times), CATEGORIES.index("other"))
    for phase, spans in during.items():
        found[spans.covered(times)] = CATEGORIES.index(phase)
    return found


def _categories(addresses: list[int], changes: list[int], born: list[int]) -> Integers:
    """A freed block has the category of its allocation; 0 (before) if it was not allocated in the trace."""
    alive: dict[int, int] = {}
    found = []
    for address, change, category in paced(zip(addresses, changes, born, strict=True)):
        if change >= 0:
            alive[address] = category
            found.append(category)
        else:
            found.append(alive.pop(address, 0))
    return np.array(found, dtype=np.int64)


def _thinned(table: pl.DataFrame, points: int) -> pl.DataFrame:
    if table.height <= points:
        return table
    stretch = (pl.int_range(pl.len()) * points // pl.len()).alias("stretch")
    return (
        table.with_columns(stretch)
        .filter(pl.col("allocated") == pl.col("allocated").max().over("stretch"))
        .unique("stretch", keep="first", maintain_order=True)
        .drop("stretch")
    )
