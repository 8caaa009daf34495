"""Runs a `paceline run` command as a person would type it: in a fresh process, which shares nothing with the trials."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from paceline.errors import RecordError
from paceline.record import read_run
from paceline.record.schema import FailureKind, Outcome

FAREWELL = 20.0  # seconds that an interrupted command has to end


def run_alone(command: Sequence[str], *, into: Path, steps: int, limit: float | None) -> Outcome:
    """The outcome of the command, stopped after `steps` steps, or after `limit` seconds as a failure. Its record is
    `record_in(into)`. An interrupt ends the command, too, and is raised again."""
    program, verb, *rest = command
    typed = [sys.executable, "-m", program, verb, "--json", "--quiet", "--record", str(into), "--steps", str(steps)]
    process = subprocess.Popen(
        [*typed, *rest], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        _end(process)
        return Outcome(exit_code=1, seconds=limit or 0.0, kind=FailureKind.LATE, cause="took too long")
    except BaseException:
        _end(process)
        raise
    with contextlib.suppress(RecordError):
        if (outcome := read_run(record_in(into)).outcome) is not None:
            return outcome
    cause = f"ended with exit code {process.returncode}"
    with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
        cause = msgspec.json.decode(printed)["error"]["message"]
    return Outcome(exit_code=process.returncode or 1, seconds=0.0, cause=cause)


def record_in(folder: Path) -> Path:
    """The record of a trial: the folder itself, or that of the command which ran alone in it."""
    return folder if (folder / "run.json").exists() else next((p.parent for p in folder.glob("*/run.json")), folder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=FAREWELL)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
