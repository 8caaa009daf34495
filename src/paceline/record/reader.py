"""Reads a record, even if its run was killed in the middle of a line. Refuses the record of a newer Paceline."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.errors import NoRecordError, RecordError
from paceline.record.inside import File, Folder
from paceline.record.schema import SCHEMA, Run, Step

_decoder = msgspec.json.Decoder(Step)


class _Schema(msgspec.Struct):
    schema: int = SCHEMA


def read_run(folder: Path | Folder, *, most: int | None = None) -> Run:
    """The content of `run.json`. RecordError if the file is missing or damaged, has a newer schema, or has more than
    `most` bytes."""
    path = Folder.of(folder).file("run.json")
    data = _bytes(path, most)
    try:
        # The schema number comes first: a newer file may not match these types at all.
        found = msgspec.json.decode(data, type=_Schema).schema
        if found > SCHEMA:
            raise RecordError(
                f"{path} has schema {found}; this Paceline reads up to {SCHEMA}.",
                advice="Read it with the Paceline that wrote it, or type: pip install --upgrade paceline",
            )
        return msgspec.json.decode(data, type=Run)
    except msgspec.DecodeError as error:
        raise RecordError(f"{path} is not a record's run.json: {error}.") from error


def read_steps(folder: Path | Folder, rank: int) -> list[Step]:
    """The steps of one worker. A torn last line is left out, a torn line anywhere else is a RecordError."""
    path = Folder.of(folder).file(f"steps.rank{rank}.jsonl")
    return parse_steps(_bytes(path), path) if path.exists() else []


def parse_steps(data: bytes, path: File | Folder) -> list[Step]:
    """Decodes complete lines, and a last line that may be torn. RecordError if another line is no step."""
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
            raise RecordError(f"{path}, line {number} of those read is damaged: {error}.") from error
    return steps


def last_step(folder: Path | Folder, rank: int) -> Step | None:
    """The last step that one worker finished. Reads only the end of the file."""
    try:
        end, _ = Folder.of(folder).file(f"steps.rank{rank}.jsonl").read_end(8192)
    except (OSError, RecordError):
        return None
    for line in reversed(end.split(b"\n")):
        try:
            return msgspec.json.decode(line, type=Step)
        except msgspec.DecodeError:
            continue
    return None


def _bytes(path: File, most: int | None = None) -> bytes:
    try:
        return path.read(most)
    except FileNotFoundError as error:
        raise NoRecordError(
            f"There is no record at {path.folder}: {path.name} is missing.",
            advice="A record is a folder such as paceline-runs/2026-11-15T10-22-31-train.",
        ) from error
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}.") from error
