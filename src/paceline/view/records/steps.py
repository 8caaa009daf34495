"""Reads a record's steps into a data frame, in bounded memory: of a very long run, only the last steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from paceline.errors import RecordError
from paceline.record import Step
from paceline.record.inside import File, Folder
from paceline.tables.records import STEPS

MOST = 128 << 20  # bytes of all ranks' step files together: about half a million steps

_decoder = msgspec.json.Decoder(Step)


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


def read_tail(path: File, most: int) -> tuple[list[Step], bool]:
    """The last steps of a file, and whether earlier ones are left out. An incomplete last line is ignored."""
    try:
        data, cut = path.read_end(most)
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}.") from error
    if cut:
        data = data[data.find(b"\n") + 1 :]  # the data begin in the middle of a line
    return parse(data, path), cut


def parse(data: bytes, path: File | Folder) -> list[Step]:
    """Decodes complete lines, and a last line that may be incomplete. Raises RecordError if another line is no step."""
    whole, _, torn = data.rpartition(b"\n")
    try:
        steps = _decoder.decode_lines(whole.replace(b"\0", b"")) if whole else []
    except (msgspec.DecodeError, RecursionError):
        steps = _one_by_one(whole, path)
    try:
        return [*steps, _decoder.decode(torn)] if torn.strip(b" \0") else steps
    except (msgspec.DecodeError, RecursionError):
        return steps


def _one_by_one(data: bytes, path: File | Folder) -> list[Step]:
    steps = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip(b" \0"):
            continue
        try:
            steps.append(_decoder.decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            raise RecordError(f"{path} is damaged in line {number} of those read: {error}.") from error
    return steps
