"""How far the clocks of hosts were apart, and how well that is known."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console

from paceline.record import Run
from paceline.record.schema import ClockOffset
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


def show_clocks(console: Console, run: Run) -> None:
    """Prints a line for each host; nothing for a run on this host."""
    if not (clocks := clocks_of(run)):
        return
    console.print("clocks, against the one here; time lines are aligned by them", style="bold")
    for name, clock in clocks:
        way = "ahead" if clock.offset >= 0 else "behind"
        drift = f", drift {clock.drift * 1e6:+.1f} ppm" if clock.drift else ""
        console.print(
            f"  {name}: {seconds(abs(clock.offset))} {way}, known to ±{seconds(clock.error)}{drift} "
            f"({clock.readings} readings)",
            soft_wrap=True,
        )
