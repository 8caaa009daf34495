"""The folder of a record: created once per run, and checked for writing before any worker starts."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import RecordError
from paceline.record.inside import Folder
from paceline.record.private import OWNER, keep_private, make_folder, make_record, write_file

SCRATCH = "scratch"
TRACES = ("trace.rank*.json.gz", "trace.rank*.sqlite")  # names of a record's traces
RESERVE = ".reserved"  # bytes that keep room for how the run has ended, on a disk that fills up meanwhile
_PROBE = b"\0" * 65536


def short_name(script: str) -> str:
    """`some/where/train.py` → `train`; a module's name stays as it is: `package.train`."""
    return Path(script).name.removesuffix(".py")


def new_folder(parent: Path, script_name: str, *, share: bool = False) -> Path:
    """Creates a new folder such as `parent/2026-11-15T10-22-31-train` and returns it. Other accounts may read the
    folder only with `share`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", short_name(script_name)).strip("-.") or "script"
    name = f"{time.strftime('%Y-%m-%dT%H-%M-%S')}-{stem}"
    for attempt in range(1, 1000):
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            parent.mkdir(parents=True, exist_ok=True)
            make_record(folder, share=share)
        except FileExistsError:
            if parent.is_dir():
                continue
            raise unwritable(folder, NotADirectoryError(errno.ENOTDIR, f"{parent} is a file")) from None
        except OSError as error:
            raise unwritable(folder, error) from error
        with _taken_back(folder, folder):
            prove(folder, 2 * _PROBE)  # also room for what is written before `prepare`
        return folder
    raise RecordError(f"{parent} already holds a thousand records of {name}.", advice="Try again in a second.")


def prepare(folder: Path, *, share: bool = False) -> None:
    """Creates the folder if it is missing, removes an earlier run's files (a record belongs to one run), and checks
    that the folder can be written. Other accounts may read the folder only with `share`."""
    try:
        is_new = not folder.is_dir()
        if is_new:
            make_folder(folder.parent)
            make_record(folder, share=share)
        elif not share:
            keep_private(folder)
        per_rank = (
            "log.rank*.txt",
            "steps.rank*.jsonl",
            "noise.rank*.jsonl",
            "trace.rank*.json.gz",
            "*.columns",
            "facts.rank*.json",
            "pipelines.rank*.jsonl",
        )
        for pattern in (*per_rank, "findings.json", "figures.json"):
            for stale in folder.glob(pattern):
                stale.unlink()
        with _taken_back(folder, folder / SCRATCH, *([folder] if is_new else [])):
            _make_scratch(folder)
            prove(folder)
            write_file(folder / RESERVE, _PROBE)
    except OSError as error:
        raise unwritable(folder, error) from error


@contextlib.contextmanager
def _taken_back(record: Path, *made: Path) -> Iterator[None]:
    """Around the first writes to a record: if they fail, the folders that were made for it go, as far as they are
    empty."""
    try:
        yield
    except BaseException:
        release(record)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def release(folder: Path) -> None:
    """Gives back the room that `prepare` has reserved. Called before the last write of a run."""
    with contextlib.suppress(OSError):
        (folder / RESERVE).unlink()


def _make_scratch(folder: Path) -> None:
    """Creates the folder for the script's files of ranks above 0 (see script/output/rank0.py), private even in a shared
    record."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder / SCRATCH, OWNER)


def prove(folder: Path, probing: bytes = _PROBE) -> None:
    """Writes a file to the folder and removes it. Permission bits and free-space counters are not reliable enough."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        try:
            write_file(probe, probing)
        finally:
            with contextlib.suppress(OSError):  # a missing folder is told by the write
                probe.unlink()
    except OSError as error:
        raise unwritable(folder, error) from error


def unwritable(path: Path, error: OSError) -> RecordError:
    """The error for a failed write to the record."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some space there, or name another folder: --record DIR"
    else:
        advice = "Name a folder that you may write to: --record DIR"
    return RecordError(f"The record cannot be written to {path}: {error.strerror or error}.", advice=advice)


def log_path(folder: Path | str, rank: int) -> Path:
    """The file that holds a worker's standard output and error."""
    return Path(folder) / f"log.rank{rank}.txt"


def last_lines(folder: Path | str, rank: int, count: int = 10) -> list[str]:
    """The last lines of a worker's log; none if there is no log."""
    try:
        end, _ = Folder.of(folder).file(f"log.rank{rank}.txt").read_end(16384)
    except (OSError, RecordError):
        return []
    return end.decode(errors="replace").rstrip().splitlines()[-count:]
