"""The demo's script: copies it into a folder of the user, and runs the copy with plain Python."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from paceline.errors import PacelineError, UsageError

NAME = "train.py"


def copy_script(folder: Path) -> Path:
    """Copies the script into the folder and returns its path. UsageError if a different file has that name."""
    target, shipped = folder / NAME, files("paceline.trials.demo").joinpath("script", NAME).read_bytes()
    use_another = f"Name another folder: paceline demo --folder {folder}-2"
    try:
        if target.exists():
            if target.read_bytes() != shipped:
                raise UsageError(
                    f"--folder {folder}: {target} is not the demo's script, or was changed.", advice=use_another
                )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            target.write_bytes(shipped)
    except OSError as error:
        raise UsageError(
            f"--folder {folder}: {target} cannot be written: {error.strerror}.", advice=use_another
        ) from error
    return target


def run_plain(script: Path, *, on_line: Callable[[str], None] = lambda line: None) -> str:
    """Runs `python script` and returns its standard output; calls `on_line` for each line as it is printed.
    PacelineError if the script fails. A KeyboardInterrupt ends the script and is raised again."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches only this process, which then ends the script
        )
        lines = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                on_line(line.rstrip("\n"))
            process.wait()
        finally:
            process.kill()
            process.communicate()
        if process.returncode:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip().splitlines()[-1:]
            why = (said or [f"exit code {process.returncode}"])[0]
            raise PacelineError(f"python {script} failed: {why}", advice="To check this machine, type: paceline doctor")
    return "".join(lines)
