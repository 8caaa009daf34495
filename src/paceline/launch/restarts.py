"""Runs that start again: with more workers, from the state of a commit, or after a failure, from the last save.

So does a Slurm job that goes back into the queue, with the same batch script and command: a saved state names the job
that has saved it.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from paceline.checkpoint import manifest
from paceline.errors import CheckpointError
from paceline.launch.events import Event, Notice
from paceline.launch.host import HostsGoneError
from paceline.record import Outcome
from paceline.record.schema import FailureKind
from paceline.settings import JOINED, RunSettings, SaveSettings, slurm_allocation
from paceline.units import count

REPLACED = (
    "{folder} holds the state of an earlier run. This run starts from the beginning, and its first save replaces that "
    "state. To go on from it, type: --resume auto"
)
OTHERS = (
    "{folder} holds the state of Slurm job {other}. This job, {job}, starts from the beginning, and its first save "
    "replaces that state. If both jobs run, give each a folder of its own: --save-to"
)
UNUSED = "Nothing was saved: the script makes no paceline.Elastic, or no commit. See docs/elastic.md."


def with_restarts(
    run: RunSettings, record: Path, on_event: Callable[[Event], None], attempt: Callable[[RunSettings], Outcome]
) -> Outcome:
    """The outcome of the last attempt, with the notices of all. Each runs the whole script, from the last save on.

    An attempt that failed is followed by another one if `run.restarts` are left; if the run is elastic on several
    hosts, also if something was saved meanwhile, or if a host or a worker was lost, for the first time, before anything
    was."""
    saving, left, notices, lost = run.saving, run.restarts, list[str](), set[str]()
    if saving is None:
        return attempt(run)
    first = _age(saving.folder)
    saving = of_this_job(saving)
    run = dataclasses.replace(run, saving=saving)

    def tell(text: str) -> None:
        notices.append(text)
        on_event(Notice(text))

    if first and not saving.resume:
        other = saved_by(saving.folder) if saving.job else ""
        tell(
            (REPLACED if other in ("", saving.job) else OTHERS).format(
                folder=saving.folder, other=other, job=saving.job
            )
        )
    while True:
        before = _age(saving.folder)
        gone: HostsGoneError | None = None
        try:
            outcome = attempt(run)
            notices += outcome.notices
        except HostsGoneError as error:
            gone, outcome = error, Outcome(exit_code=1, seconds=0.0, message=error.message)
        now = _age(saving.folder)
        state = now and (now != first or saving.resume)
        if outcome.exit_code == JOINED:
            tell("The run starts again with all workers that there are.")
        elif outcome.exit_code and not outcome.interrupted and state and (left or (run.most and now != before)):
            left -= left > 0
            allowed = f"; {count(left, 'restart')} left" if run.restarts else ""
            tell(f"{outcome.message}\nThe run starts again from {saving.folder}{allowed}.")
        elif run.most and not state and (names := _lost(outcome, gone)) and not lost & names:
            lost |= names
            tell(f"{outcome.message}\nNothing was saved yet: the run starts again from the beginning.")
            shutil.rmtree(record / "scratch", ignore_errors=True)
            continue
        elif gone is not None:
            raise gone
        else:
            break
        shutil.rmtree(record / "scratch", ignore_errors=True)  # files of ranks above 0, which all end here
        run = dataclasses.replace(run, saving=dataclasses.replace(saving, resume=saving.folder))
    if not (state or outcome.exit_code):
        tell(UNUSED)
    outcome.notices = notices
    return outcome


def _lost(outcome: Outcome, gone: HostsGoneError | None) -> set[str]:
    """The hosts that an attempt has lost, or the worker whose loss has ended it."""
    if gone is not None:
        return {*gone.names}
    return {f"worker {outcome.failed_rank}"} if outcome.kind is FailureKind.KILLED else set()


def _age(folder: str) -> int:
    """When the checkpoint in this folder was made; 0: there is none."""
    try:
        return (Path(folder) / manifest.NAME).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def of_this_job(saving: SaveSettings) -> SaveSettings:
    """The settings, with the saved state to go on from if this job has saved it in an earlier start. Called once at the
    start of a run, by its launcher."""
    allocation = slurm_allocation()
    if allocation is None:
        return saving
    own = bool(allocation.restarts) and saved_by(saving.folder) == allocation.job
    return dataclasses.replace(saving, job=allocation.job, resume=saving.folder if own else saving.resume)


def saved_by(folder: str) -> str:
    """The Slurm job that has saved the state in this folder; empty if none has, or if the state cannot be read."""
    try:
        return str(manifest.read(Path(folder)).saved.get("job", ""))
    except CheckpointError:
        return ""
