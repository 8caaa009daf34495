"""The folder of a record: made once per run, and proven writable before anything is started."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

from paceline.errors import RecordError

_PROBE = b"\0" * 65536
_open = os.open  # bound now: a rank that has no voice later gets another os.open, into its scratch folder


def new_folder(parent: Path, script_name: str) -> Path:
    """Makes `parent/2026-11-15T10-22-31-train` and returns it: never a folder that was there before."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script_name).stem or script_name).strip("-.") or "script"
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{stem}"
    for attempt in range(1, 1000):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if parent.is_dir():
                continue
            raise unwritable(folder, NotADirectoryError(errno.ENOTDIR, f"{parent} is a file")) from None
        except OSError as error:
            raise unwritable(folder, error) from error
        prove(folder)
        return folder
    raise RecordError(f"{parent} already holds a thousand records of {name}.", advice="Try again in a second.")


def prepare(folder: Path) -> None:
    """Makes the folder where it is missing, takes out what an earlier run left there, and proves that it can be
    written: a record is of one run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        per_rank = (
            "log.rank*.txt",
            "steps.rank*.jsonl",
            "noise.rank*.jsonl",
            "trace.rank*.json.gz",
            "facts.rank*.json",
            "pipelines.rank*.jsonl",
        )
        for pattern in (*per_rank, "findings.json"):
            for stale in folder.glob(pattern):
                stale.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error
    prove(folder)


def prove(folder: Path) -> None:
    """Writes something there and takes it away again: permission bits and free-space counters can both
    lie."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        try:
            with open(probe, "wb") as file:
                file.write(_PROBE)
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(path: Path, error: OSError) -> RecordError:
    """The error to raise when writing the record failed: what was found, and what to type."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some space there, or name another folder: --record DIR"
    else:
        advice = "Name a folder that you may write: --record DIR"
    return RecordError(f"The record cannot be written to {path}: {error.strerror or error}.", advice=advice)


def log_path(folder: Path | str, rank: int) -> Path:
    """Where a worker's standard output and error are."""
    return Path(folder) / f"log.rank{rank}.txt"


def open_log(folder: Path | str, rank: int) -> int:
    """A descriptor that appends to a worker's log. RecordError where that cannot be."""
    path = log_path(folder, rank)
    try:
        return _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(path, error) from error


def last_lines(folder: Path | str, rank: int, count: int = 10) -> list[str]:
    """The end of a worker's log; nothing where it has none."""
    try:
        with open(log_path(folder, rank), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            return file.read().decode(errors="replace").rstrip().splitlines()[-count:]
    except OSError:
        return []
