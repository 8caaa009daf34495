"""A committed state on the disk, from which all workers start again when lost ones are replaced.

Rank 0 writes and reads it, alone; the others get it when the state is synchronized.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.checkpoint import manifest
from paceline.checkpoint.reader import Reader
from paceline.checkpoint.save import Part, save_states
from paceline.checkpoint.tree import decode
from paceline.settings import of_this_process


def write(states: dict[str, Any], values: dict[str, Any]) -> None:
    """`states` are state_dicts, by name; `values` plain values."""
    saving = of_this_process().run.saving
    assert saving is not None
    parts = [Part(name, "object", "", state) for name, state in states.items()]
    save_states(Path(saving.folder), parts, step=None, extra=values)


def read() -> tuple[dict[str, Any], dict[str, Any]] | None:
    """What `write` wrote; None if this run does not start from it."""
    saving = of_this_process().run.saving
    if saving is None or not saving.resume:
        return None
    where = Path(saving.resume)
    found = manifest.read(where)
    reader = Reader(where, found)
    states = {name: decode(part["state"], reader.read) for name, part in found.parts.items()}
    return states, decode(found.extra, reader.read) or {}
