"""A Slurm job that goes back into the queue and starts again goes on from the state that it has saved.

Slurm starts the same batch script with the same command. A note beside the saved state names the job that has begun,
and the age of the state at that time: a newer state is the job's own, an older one is that of another run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from paceline.settings import SaveSettings, slurm_allocation


def of_this_job(saving: SaveSettings, age: int) -> SaveSettings:
    """The settings, with the saved state to go on from if this job has saved one in an earlier start. `age` is that of
    the saved state; 0: there is none. Called once at the start of a run, by its launcher."""
    allocation = slurm_allocation()
    if allocation is None:
        return saving
    note = Path(f"{saving.folder}.job")
    begun = ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        begun = note.read_text()
    job, _, before = begun.partition(" ")
    if allocation.restarts and job == allocation.job:
        return dataclasses.replace(saving, resume=saving.folder) if age and str(age) != before else saving
    with contextlib.suppress(OSError):  # a folder that cannot be written fails at the first save, with its reason
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{allocation.job} {age}")
    return saving
