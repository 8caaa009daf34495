"""A preset: the mods that `tune` found for a script. `tune` writes it into its record; `run --preset` reads it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import msgspec

from paceline.errors import RecordError, UsageError
from paceline.record.writer import write_document
from paceline.settings import Compression

TUNED = "tuned"  # stands for the newest preset of a script
FILE = "preset.json"


class Preset(msgspec.Struct, kw_only=True):
    """Mods for one script. No mods: `said` is the search's conclusion."""

    schema: int = 1
    script: str  # absolute path, or the name of a module
    module: bool = False
    mods: list[str]
    workers: int | None = None  # None: the number that the user gives
    strategy: str = "mirrored"
    compression: Compression = "none"
    gain: float = 1.0
    said: str = ""  # as `tune` said it
    made: float = 0.0  # unix time


def whole_path(script: str, *, module: bool) -> str:
    """The absolute path of a script, or of a module's file, so that any way to name it finds the same preset."""
    if module:
        try:
            spec = importlib.util.find_spec(script)
        except (ImportError, ValueError):
            return script
        return os.path.realpath(spec.origin) if spec is not None and spec.origin else script
    return os.path.realpath(script)


def write_preset(record: Path, preset: Preset) -> Path:
    """Writes the preset into the record of the series that found it, and returns its path."""
    path = record / FILE
    write_document(path, preset)
    return path


def find_preset(asked: str, script: str, *, module: bool, records: Path) -> tuple[Preset, Path]:
    """The preset, and its record. `asked` is `tuned` for the script's newest preset in `records`, or the path of a
    record. UsageError if there is none, or if the preset belongs to another script."""
    ours = whole_path(script, module=module)
    if asked != TUNED:
        path = Path(asked)
        preset = _read(path / FILE if path.is_dir() else path)
        if preset is None:
            raise UsageError(
                f"--preset {asked}: there is no {FILE} in this folder.",
                advice=f"Name a record of `paceline tune`, or make one: paceline tune {script}",
            )
        if preset.script != ours:
            mods = " ".join(f"--mod {mod}" for mod in preset.mods)
            raise UsageError(
                f"--preset {asked}: this preset belongs to {preset.script}, not to {script}.",
                advice=f"Tune this script: paceline tune {script}"
                + (f"; or use the mods anyway: {mods}" if mods else ""),
            )
        return preset, path if path.is_dir() else path.parent
    found = [(preset, path.parent) for path in records.glob(f"*/{FILE}") if (preset := _read(path)) is not None]
    own = [(preset, folder) for preset, folder in found if preset.script == ours]
    if not own:
        others = f", only {len(found)} of other scripts" if found else ""
        raise UsageError(
            f"--preset {TUNED}: there is no preset of {script} in {records}{others}.",
            advice=f"Make one: paceline tune {script}",
        )
    return max(own, key=lambda one: one[0].made)


def _read(path: Path) -> Preset | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Preset)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise RecordError(f"{path} is not a preset: {error}.", advice="Name another record.") from error
