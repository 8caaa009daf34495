"""Runs that start again: with more workers, from the state of a commit, or after a failure, from the last save."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from paceline.launch.events import Event, Notice
from paceline.record import Outcome
from paceline.settings import JOINED, RunSettings
from paceline.units import count

SAVED = "checkpoint.json"  # in the folder of a whole checkpoint
UNUSED = "Nothing was saved: the script makes no paceline.Elastic, or no commit. See docs/elastic.md."


def with_restarts(
    run: RunSettings, record: Path, on_event: Callable[[Event], None], attempt: Callable[[RunSettings], Outcome]
) -> Outcome:
    """The outcome of the last attempt, with the notices of all. Each runs the whole script, from the last save on."""
    saving, left, notices = run.saving, run.restarts, list[str]()
    if saving is None:
        return attempt(run)
    before = _age(saving.folder)

    def tell(text: str) -> None:
        notices.append(text)
        on_event(Notice(text))

    while True:
        outcome = attempt(run)
        notices += outcome.notices
        fresh = _age(saving.folder) != before
        if outcome.exit_code == JOINED:
            run = dataclasses.replace(run, workers=run.most or run.workers)
            tell(f"The run starts again with {count(run.workers, 'worker')}.")
        elif outcome.exit_code and not outcome.interrupted and left and (fresh or saving.resume):
            left -= 1
            tell(f"{outcome.message}\nThe run starts again from {saving.folder}; {count(left, 'restart')} left.")
        else:
            break
        shutil.rmtree(record / "scratch", ignore_errors=True)  # files of ranks above 0, which all end here
        run = dataclasses.replace(run, saving=dataclasses.replace(saving, resume=saving.folder))
    if not (fresh or saving.resume or outcome.exit_code):
        tell(UNUSED)
    outcome.notices = notices
    return outcome


def _age(folder: str) -> int:
    try:
        return (Path(folder) / SAVED).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
