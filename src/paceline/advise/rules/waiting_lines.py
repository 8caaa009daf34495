"""Lines of the script wait for the device in every step."""

from __future__ import annotations

import polars as pl

from paceline.advise.evidence import Evidence
from paceline.advise.finding import Figure, Finding
from paceline.units import seconds

OFTEN = 0.5  # calls per step, at least: reading a value every tenth step costs a tenth, which is acceptable
MOST = 5  # lines named in a finding


def find(evidence: Evidence) -> Finding | None:
    """Lines of the script read a value from the device in every step (`.item()`, `.cpu()`, printing a tensor,
    `nonzero`): the host waits there, and the device is idle until the host launches again.

    Fixed by hand: accumulate on the device, and read the sum every k-th step. Predicted: no waits, so that input and
    launching overlap with the device's compute, and the slower of the two sets the step time.
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
            Figure("the device idles until the host has restarted", clock.synchronisation, "s"),
            Figure("step", clock.wall, "s"),
        ],
        where=where[0],
        predicted_gain=clock.gain_without_waits(),
        how="without waits the slower of the host and the device sets the step time",
        advice=f"Accumulate on the device (total += loss.detach()), and read every k-th step: {seconds(clock.wall)} "
        f"per step would become {seconds(clock.wall / clock.gain_without_waits())}. `paceline profile` lists all lines",
    )
