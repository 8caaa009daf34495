"""The page of `plan --measure`: predicted steps by workers, and what the record cannot tell."""

from __future__ import annotations

import msgspec

from paceline.plan.charts import charts
from paceline.plan.plan import Plan
from paceline.plan.step import CAUSES
from paceline.units import percent
from paceline.view.ui.blocks import Block, Note
from paceline.view.ui.grid import Column, Grid


def planning(made: Plan) -> list[Block]:
    rows = [msgspec.to_builtins(one) | one.parts for one in made.rows]
    grid = Grid(
        name="points",
        title=f"{made.cluster}, {made.mode} scaling",
        about=f"Predicted, not measured. The interval is ±{percent(made.error, digits=0)} and the spread of the steps.",
        columns=(
            Column(key="workers", title="workers", how="Number of workers.", kind="count"),
            Column(key="samples_per_s", title="samples/s", how="Predicted samples per second.", kind="rate"),
            Column(key="low", title="low", how="The lower end of the interval.", kind="rate"),
            Column(key="high", title="high", how="The upper end of the interval.", kind="rate"),
            Column(key="efficiency", title="efficiency", how="Compared with as many single workers.", kind="share"),
            Column(key="seconds", title="a step", how="Predicted time of a step.", kind="seconds"),
            *(Column(key=cause, title=cause, how=f"Part of the step: {cause}.", kind="seconds") for cause in CAUSES),
            Column(key="bottleneck", title="limited by", how="The largest part beside compute.", wrap=True),
            Column(key="remedy", title="what helps", how="What would make that part smaller.", wrap=True),
        ),
        rows=rows,
    )
    told = [Note(text=f"Not known: {each}.") for each in made.unknown]
    return [*charts(made.rows, made.others, made.knee), grid, *told]
