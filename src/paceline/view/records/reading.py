"""Reads a record's run, state and steps in bounded memory, without the tables: what lists of records need."""

from __future__ import annotations

import time

from paceline.errors import RecordError
from paceline.record import Run, Step, read_run
from paceline.record.about.lock import is_held
from paceline.record.inside import File, Folder
from paceline.record.reader import parse_steps

LARGEST = 16 << 20  # bytes of a JSON document; Paceline writes a few kilobytes
MOST_WORKERS = 4096
FROM_ELSEWHERE = "trace"  # the verb in a record of traces that were taken elsewhere
ALIVE = 60.0  # seconds without a new line, after which a run without an outcome counts as killed


def read_bounded_run(folder: Folder) -> Run:
    """Raises RecordError if there is no record, or if the record does not fit in memory."""
    try:
        run = read_run(folder, most=LARGEST)
    except RecursionError as error:
        raise RecordError(
            f"{folder.file('run.json')} is nested too deeply: Paceline did not write this file."
        ) from error
    if len(run.workers) > MOST_WORKERS:
        raise RecordError(
            f"{folder.file('run.json')} lists {len(run.workers):,} workers; pages show at most {MOST_WORKERS:,}."
        )
    return run


def trials_in(folder: Folder) -> list[str]:
    """Names of the folders in `trials` that hold a record; empty if `trials` is not a folder."""
    trials = folder.folder("trials")
    try:
        return [name for name in trials.names("[!.]*") if _holds_record(trials.folder(name))]
    except (OSError, RecordError):
        return []


def _holds_record(folder: Folder) -> bool:
    try:
        return folder.file("run.json").exists()
    except RecordError:
        return False  # a link or a file, not a folder


def state_of(run: Run, folder: Folder) -> str:
    """The state of a run: running, succeeded, failed or stopped (by the user, or because the launcher was killed); or
    opened, of traces that no run of Paceline made."""
    outcome = run.outcome
    if run.verb == FROM_ELSEWHERE:
        return "opened"
    if outcome is not None:
        return "stopped" if outcome.interrupted else "failed" if outcome.exit_code else "succeeded"
    if is_held(folder.path):
        return "running"
    latest = run.started
    names = (*folder.names("steps.rank*.jsonl"), *folder.names("log.rank*.txt"))
    files = [*map(folder.file, names), *(folder.folder("trials", name).file("run.json") for name in trials_in(folder))]
    for file in files:
        stat = file.stat()
        latest = max(latest, stat.st_mtime if stat is not None else 0.0)
    return "running" if time.time() - latest < ALIVE else "stopped"


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
    return parse_steps(data, path), cut
