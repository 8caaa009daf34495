"""A run's record: one folder of plain files, their types, the writer and the reader."""

from paceline.record.folder import new_folder, prepare
from paceline.record.reader import last_step, read_run, read_steps
from paceline.record.schema import SCHEMA, Outcome, Run, Step, WorkerInfo
from paceline.record.writer import StepWriter, write_run

__all__ = [
    "SCHEMA",
    "Outcome",
    "Run",
    "Step",
    "StepWriter",
    "WorkerInfo",
    "last_step",
    "new_folder",
    "prepare",
    "read_run",
    "read_steps",
    "write_run",
]
