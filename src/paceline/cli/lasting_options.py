"""The options of runs that outlast a killed worker, a lost host or the end of their time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.errors import UsageError
from paceline.options import LASTING, option, read_time
from paceline.settings import SaveSettings

SAVES = "paceline-saves"  # the folder of all saves, where nothing else is given


@dataclass(frozen=True, kw_only=True)
class LastingOptions:
    PANEL: ClassVar = LASTING
    elastic: str | None = option(
        None,
        "Go on without workers that are killed, with the same numbers, as long as MIN are left. With MAX, start again "
        "with MAX workers at the next commit of a paceline.Elastic state.",
        "MIN[:MAX]",
    )
    save_every: str | None = option(
        None, "Save the script's paceline.Elastic state: every 10m, or every 500 commits.", "TIME|COMMITS"
    )
    save_to: Path | None = option(None, "Folder of the saved state.", "FOLDER", usual=f"{SAVES}/SCRIPT")
    resume: str | None = option(
        None, "Go on from a saved state. auto: from the one in --save-to, if there is one.", "auto|FOLDER"
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the most workers of an elastic run, as typed."""

    least: int | None = None
    most: int | None = None


def bounds_of(typed: str | None) -> Bounds:
    """`2` or `2:4`."""
    if typed is None:
        return Bounds()
    least, colon, most = typed.partition(":")
    if not least.isdigit() or int(least) < 1 or (colon and (not most.isdigit() or int(most) < int(least))):
        raise UsageError(
            f"--elastic {typed}: not a number of workers.", advice="Type it like this: --elastic 2, or --elastic 2:4"
        )
    return Bounds(int(least), int(most) if colon else None)


def saving_of(asked: LastingOptions, script: str, *, needed: bool) -> SaveSettings | None:
    """Where and when the state is saved; None if nothing asks for it. `needed`: another option does."""
    every, folder, resume = asked.save_every, asked.save_to, asked.resume
    if every is None and folder is None and resume is None and not needed:
        return None
    where = (Path(SAVES) / Path(script).stem if folder is None else folder).absolute()
    start = where if resume == "auto" else Path(resume).absolute() if resume is not None else None
    if start is not None and not (start / "checkpoint.json").is_file():
        if resume != "auto":
            raise UsageError(
                f"--resume {resume}: there is no saved state.",
                advice="Type the folder that holds checkpoint.json, or --resume auto.",
            )
        start = None
    commits = int(every) if every is not None and every.isdigit() else 0
    if every is not None and every.isdigit() and not commits:
        raise UsageError("--save-every 0: nothing would be saved.", advice="Type it like this: --save-every 10m")
    seconds = read_time(every, "--save-every") if every is not None and not commits else None
    return SaveSettings(
        folder=str(where), seconds=seconds or 0.0, commits=commits, resume="" if start is None else str(start)
    )
