"""Why one run is slower than another, in sentences, from the figures of both.

A difference counts only if the blocks of the two runs' steps do not overlap. Runs with different batches are compared
per 1,000 samples, because a step of a larger batch takes longer without being slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from paceline.record.phases import EVALUATION, PHASES
from paceline.tables.figures import Figures, columns_in, figures
from paceline.tables.ops import ops
from paceline.tables.records import Tables
from paceline.tables.trace.steps import windows
from paceline.units import percent, rate, seconds

PARTS = tuple(phase for phase in PHASES if phase != EVALUATION)  # what the step time consists of
NOTABLE = 0.1  # of the change of the step time: a smaller change of a phase is not named
PER = 1000  # samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`times`: speed of B relative to A; None if one of them has no speed. `clear`: the difference exceeds the scatter
    of the steps. `sentences` begin with the result."""

    times: float | None
    clear: bool
    sentences: Sequence[str]


def compare(a: Figures, b: Figures, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """How much slower or faster the second run is, and in which phases of a step."""
    one, other = names
    if not a.step_time or not b.step_time:
        missing = one if not a.step_time else other
        return Comparison(times=None, clear=False, sentences=[f"{missing} made no step that can be timed."])
    by_samples = a.samples_per_s > 0 and b.samples_per_s > 0
    times = b.samples_per_s / a.samples_per_s if by_samples else a.step_time / b.step_time
    if not by_samples:
        said = f"A step took {seconds(a.step_time)} in {one} and {seconds(b.step_time)} in {other}."
        unknown = "Not both count their samples, so which one is faster is not known."
        return Comparison(times=times, clear=False, sentences=[said, unknown])
    measured = f"{rate(b.samples_per_s)} against {rate(a.samples_per_s)} samples/s"
    if not (a.low > b.high or b.low > a.high):
        ranges = f"{one}: {rate(a.low)} to {rate(a.high)}, {other}: {rate(b.low)} to {rate(b.high)} samples/s"
        return Comparison(
            times=times,
            clear=False,
            sentences=[f"{one} and {other} cannot be told apart: {measured}, and their steps scatter ({ranges})."],
        )
    factor = f"{max(times, 1 / times):.3g}×"
    found = [f"{other} is {factor} {'faster' if times > 1 else 'slower'} than {one}: {measured}."]
    found += _phases(a, b, names, slower=times < 1)
    found += _stragglers(a, b, names)
    return Comparison(times=times, clear=True, sentences=found)


def _phases(a: Figures, b: Figures, names: tuple[str, str], *, slower: bool) -> list[str]:
    one, other = names
    if unknown := [name for name, figures in zip(names, (a, b), strict=True) if not figures.split]:
        return [f"Where the time goes is not known: the parts of a step of {_list(unknown)} were not timed."]
    scales, unit = (1.0, 1.0), "per step"
    said = []
    if a.batch != b.batch and a.batch and b.batch:
        scales, unit = (PER / a.batch, PER / b.batch), f"per {PER:,} samples"
        said.append(f"The batches differ ({a.batch:,} and {b.batch:,} samples), so the times below are {unit}.")
    changes = {part: b.step[part] * scales[1] - a.step[part] * scales[0] for part in PARTS}
    whole = b.step_time * scales[1] - a.step_time * scales[0]
    notable = [part for part in PARTS if abs(changes[part]) >= NOTABLE * abs(whole) and changes[part]]
    notable.sort(key=lambda part: -abs(changes[part]))
    more, less = ("more", "less") if slower else ("less", "more")
    towards = [
        f"{seconds(abs(changes[part]))} in {part}{_relative(changes[part], a.step[part] * scales[0])}"
        for part in notable
        if (changes[part] > 0) == slower
    ]
    against = [f"{seconds(abs(changes[part]))} {less} in {part}" for part in notable if (changes[part] > 0) != slower]
    if towards:
        said.append(f"{other} takes {seconds(abs(whole))} {more} {unit} than {one}: {_list(towards)}.")
    if against:
        said.append(f"Against that, {other} takes {_list(against)}.")
    return said


def _relative(change: float, before: float) -> str:
    return f" ({'+' if change > 0 else '−'}{percent(abs(change) / before, digits=0)})" if before > 0 else ""


def _stragglers(a: Figures, b: Figures, names: tuple[str, str]) -> list[str]:
    said = []
    for each, name in ((a, names[0]), (b, names[1])):
        late = each.slowest
        if late is not None and late.slow:
            said.append(f"In {name}, rank {late.rank} keeps the others waiting: {seconds(late.behind)} per step.")
    return said


def _list(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


# -- differences ------------------------------------------------------------------------------------------------------


def difference(before: Tables, after: Tables) -> pl.DataFrame:
    """One row per phase of a step, and `total`: part, before, after (seconds per step: `Figures.step` of each run),
    change (after - before), ratio (after / before; null if before is 0)."""
    rows = []
    befores, afters = (figures(columns_in(tables.steps)).step for tables in (before, after))
    for part in ("total", *PHASES):
        a, b = befores[part], afters[part]
        rows.append((part, a, b, b - a, b / a if a else None))
    schema = {"part": pl.String, "before": pl.Float64, "after": pl.Float64, "change": pl.Float64, "ratio": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def difference_of_ops(before: Tables, after: Tables) -> pl.DataFrame:
    """One row per op, largest change first: name, and calls, host (host_self) and device (device_self; seconds) per
    step of one rank: before, after; change: in device time if either run has a device, else in host time."""
    a, b = _ops(before), _ops(after)
    table = a.join(b, on="name", how="full", suffix="_after", coalesce=True).fill_null(0.0)
    table = table.rename({name: f"{name}_before" for name in ("calls", "host", "device")})
    on_device = bool((table["device_before"] > 0).any() or (table["device_after"] > 0).any())
    time = "device" if on_device else "host"
    change = (pl.col(f"{time}_after") - pl.col(f"{time}_before")).alias("change")
    return table.with_columns(change).sort([pl.col("change").abs(), "name"], descending=[True, False])


def _ops(tables: Tables) -> pl.DataFrame:
    steps = sum(max(windows(trace).height, 1) for trace in tables.traces)
    return (
        tables.over_ranks(ops)
        .filter(pl.col("kind") == "op")
        .group_by("name")
        .agg(
            calls=pl.col("calls").sum() / steps,
            host=pl.col("host_self").sum() / steps,
            device=pl.col("device_self").sum() / steps,
        )
    )
