"""How far the clocks of hosts were apart, and how well that is known."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.record import Run
from paceline.record.schema import ClockOffset
from paceline.reports.report import Sentence
from paceline.units import seconds


def clocks_of(run: Run) -> list[tuple[str, ClockOffset]]:
    """Each host of a run on several, by name, and its clock."""
    clocks, first, found = {worker.rank: worker.clock for worker in run.workers}, 0, []
    for host in run.topology.get("hosts", ()):
        if (clock := clocks.get(first)) is not None:
            found.append((str(host["name"]), clock))
        first += int(host["workers"])
    return found


def clocks_document(run: Run) -> list[dict[str, Any]]:
    """The same for --json."""
    return [{"host": name, **msgspec.to_builtins(clock)} for name, clock in clocks_of(run)]


def clocks(run: Run) -> list[Sentence]:
    """A line for each host; nothing for a run on this host."""
    if not (found := clocks_of(run)):
        return []
    said = [Sentence("clocks, against the one here; time lines are aligned by them", "strong")]
    for name, clock in found:
        way = "ahead" if clock.offset >= 0 else "behind"
        drift = f", drift {clock.drift * 1e6:+.1f} ppm" if clock.drift else ""
        apart, error = seconds(abs(clock.offset)), seconds(clock.error)
        said.append(Sentence(f"  {name}: {apart} {way}, known to ±{error}{drift} ({clock.readings} readings)"))
    return said
