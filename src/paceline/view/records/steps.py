"""Reads a record's steps into a data frame, in bounded memory: of a very long run, only the last steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from paceline.record import Step
from paceline.record.inside import Folder
from paceline.tables.records import STEPS
from paceline.view.records.reading import read_tail

MOST = 128 << 20  # bytes of all ranks' step files together: about half a million steps


@dataclass(frozen=True, slots=True)
class Steps:
    """`frame` has the form of `tables.records.steps_frame`. `partly`: the first steps of a long run are left out."""

    frame: pl.DataFrame
    partly: bool = False


def read_steps(folder: Folder, ranks: Sequence[int], *, most: int = MOST) -> Steps:
    """The steps of these ranks. Raises RecordError if a file is damaged anywhere but at its end."""
    each = most // max(len(ranks), 1)
    frames, partly = [], False
    for rank in ranks:
        steps, cut = read_tail(folder.file(f"steps.rank{rank}.jsonl"), each)
        partly = partly or cut
        columns = {"rank": [rank] * len(steps)}
        columns |= {name: [getattr(step, name) for step in steps] for name in Step.__struct_fields__}
        frames.append(pl.DataFrame(columns, schema=STEPS))
    return Steps(pl.concat(frames).sort("rank", "step") if frames else pl.DataFrame(schema=STEPS), partly)
