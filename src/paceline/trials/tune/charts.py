"""The chart of a `tune` verdict: samples/s before and after each mod, and with all kept mods together."""

from __future__ import annotations

from paceline.charts.chart import Axis, Bars, Chart, Label
from paceline.trials.tune.verdict import Verdict

TOGETHER = "together"


def charts(verdict: Verdict) -> list[Chart]:
    """The chart; empty if no mod was measured."""
    rows = [
        (row.mod, row.before, row.after, row.gain, "after, kept" if row.kept else "after, not kept")
        for row in verdict.mods
        if row.before is not None and row.after is not None and row.gain is not None
    ]
    if not rows:
        return []
    final = verdict.final
    if final is not None and final.mods:
        # Of the last check, whose speeds are those of fresh processes.
        rows.insert(0, (TOGETHER, final.samples_per_s / final.gain, final.samples_per_s, final.gain, TOGETHER))
    colours = {TOGETHER: "optimizer", "after, kept": "backward", "after, not kept": "data"}
    after = [
        Bars(
            name=name,
            y=[mod for mod, _, _, _, kind in rows if kind == name],
            x=[speed for _, _, speed, _, kind in rows if kind == name],
            colour=colour,
            horizontal=True,
            group="after",
        )
        for name, colour in colours.items()
        if any(kind == name for *_, kind in rows)
    ]
    return [
        Chart(
            name="gains",
            title="Before and after each mod",
            # The gain comes from pairs of trials, so it differs slightly from the ratio of two bars, which are means.
            caption="Mean samples/s without and with the mod, on the best set at that time. At each pair of bars: "
            "the gain, measured in pairs of trials.",
            x=Axis(title="samples/s", zero=True),
            y=Axis(kind="category", reverse=True),
            series=[
                Bars(
                    name="before",
                    y=[mod for mod, *_ in rows],
                    x=[before for _, before, *_ in rows],
                    colour="other",
                    horizontal=True,
                    group="before",
                ),
                *after,
            ],
            marks=[Label(x=max(before, speed), y=mod, text=f"{gain:.2f}×") for mod, before, speed, gain, _ in rows],
            height=max(170, 100 + 34 * len(rows)),
            wide=True,
        )
    ]
