"""The file `logged.jsonl`: numbers that rank 0 logs by name (`paceline.log(accuracy=0.7)`), one line per call."""

from __future__ import annotations

from pathlib import Path

import msgspec

from paceline.record.inside import Folder


class Logged(msgspec.Struct, kw_only=True):
    """One call of `paceline.log`."""

    step: int  # number of optimizer steps before the call
    at: float  # unix time
    numbers: dict[str, float | None]  # None: not finite, which JSON cannot write


def logged_path(folder: Path) -> Path:
    return folder / "logged.jsonl"


def read_logged(folder: Path | Folder) -> list[Logged]:
    """All complete lines; none if the script logged no numbers."""
    try:
        text = Folder.of(folder).file("logged.jsonl").read()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind(b"\n") + 1]  # the last line may be torn
    return [msgspec.json.decode(line, type=Logged) for line in whole.splitlines()]
