"""Numbers that a script logs by name (`paceline.log(accuracy=0.7)`): a line a call in `logged.jsonl`, of rank 0."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record.inside import Folder


class Logged(msgspec.Struct, kw_only=True):
    """One call."""

    step: int  # optimizer steps made before it
    at: float  # unix time
    numbers: dict[str, float | None]  # None: not finite, for which JSON has no sign


def logged_path(folder: Path) -> Path:
    return folder / "logged.jsonl"


def read_logged(folder: Path | Folder) -> list[Logged]:
    """All lines that are whole; nothing where the script logged nothing."""
    try:
        text = Folder.of(folder).file("logged.jsonl").read()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind(b"\n") + 1]  # the last line may be torn
    return [msgspec.json.decode(line, type=Logged) for line in whole.splitlines()]
