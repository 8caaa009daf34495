"""Lines of the script wait for the device in every step."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.units import seconds

OFTEN = 0.5  # calls a step: a value that is read every tenth step costs a tenth, and people want to see it
MOST = 5  # lines that are named


def find(evidence: Evidence) -> Finding | None:
    """Lines of the script that read a value of the device in every step (`.item()`, `.cpu()`, printing a tensor,
    `nonzero`): the host waits there, and the device has nothing to do until the host has launched again.

    Mended by hand: add up on the device, and read the sum once in many steps. Predicted: nothing waits, so that input
    and launching go on while the device computes, and the slower of the two decides.
    """
    clock = evidence.clock
    if clock is None or not evidence.waits.height:
        return None
    lines = evidence.waits.filter((pl.col("file") != "") & (pl.col("calls") >= OFTEN)).head(MOST).to_dicts()
    if not lines:
        return None
    where = [f"{line['file']}:{line['line']}" for line in lines]
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return Finding(
        rule="waiting_lines",
        title=f"{where[0].rpartition('/')[2]} ({lines[0]['what']}){more}: the host waits for the device in every step",
        evidence=[
            *(Figure(f"{at} ({line['what']})", line["seconds"], "s") for at, line in zip(where, lines, strict=True)),
            Figure("the device idles until the host has begun anew", clock.synchronisation, "s"),
            Figure("step", clock.wall, "s"),
        ],
        where=where[0],
        predicted_gain=clock.gain_without_waits(),
        how="without waits the slower of the host and the device decides how long a step is",
        advice=f"Add up on the device (total += loss.detach()), and read it every so many steps: {seconds(clock.wall)} "
        f"a step would be {seconds(clock.wall / clock.gain_without_waits())}. `paceline profile` lists all such lines",
    )
