"""A preset: what `tune` found for a script, kept in its record, and found again by `run --preset`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec

from paceline.errors import RecordError, UsageError
from paceline.record.folder import unwritable
from paceline.record.private import write_file

TUNED = "tuned"  # the name that stands for the newest one of a script
FILE = "preset.json"


class Preset(msgspec.Struct, kw_only=True):
    """Mods for one script. Without any: there was nothing to gain."""

    schema: int = 1
    script: str  # its whole path, or a module's name
    module: bool = False
    mods: list[str]
    workers: int | None = None  # None: as many as are asked for
    gain: float = 1.0
    made: float = 0.0  # unix time


def whole_path(script: str, *, module: bool) -> str:
    """What a script is known by, wherever it is named from. A module is known by its file."""
    if module:
        try:
            spec = importlib.util.find_spec(script)
        except (ImportError, ValueError):
            return script
        return os.path.realpath(spec.origin) if spec is not None and spec.origin else script
    return os.path.realpath(script)


def write_preset(record: Path, preset: Preset) -> Path:
    """Into the record of the series that found it."""
    path = record / FILE
    try:
        write_file(path, msgspec.json.format(msgspec.json.encode(preset)) + b"\n")
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def find_preset(asked: str, script: str, *, module: bool, records: Path) -> tuple[Preset, Path]:
    """The preset that was asked for, and the record that it lies in: `tuned` is the newest of this script among the
    records, anything else the path of a record. UsageError where there is none, or it is another script's."""
    ours = whole_path(script, module=module)
    if asked != TUNED:
        path = Path(asked)
        preset = _read(path / FILE if path.is_dir() else path)
        if preset is None:
            raise UsageError(
                f"Asked for --preset {asked}, but there is no {FILE}.",
                advice=f"Name a record of `paceline tune`, or make one: paceline tune {script}",
            )
        if preset.script != ours:
            mods = " ".join(f"--mod {mod}" for mod in preset.mods)
            raise UsageError(
                f"Asked for --preset {asked}, but that was found for {preset.script}, not for {script}.",
                advice=f"Find this script's own: paceline tune {script}" + (f"; or insist: {mods}" if mods else ""),
            )
        return preset, path if path.is_dir() else path.parent
    found = [(preset, path.parent) for path in records.glob(f"*/{FILE}") if (preset := _read(path)) is not None]
    own = [(preset, folder) for preset, folder in found if preset.script == ours]
    if not own:
        others = f"; there are {len(found)} of other scripts" if found else ""
        raise UsageError(
            f"Asked for --preset {TUNED}, but no preset of {script} is in {records}{others}.",
            advice=f"Find one: paceline tune {script}",
        )
    return max(own, key=lambda one: one[0].made)


def _read(path: Path) -> Preset | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Preset)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"{path} is not a preset: {error}.", advice="Name another record.") from error
