"""One trial of `converge` on a bench: runs the script to its end and reads its accuracy."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from pathlib import Path

import msgspec

from paceline.errors import UsageError
from paceline.launch import Event, Output
from paceline.record import read_run, read_steps
from paceline.record.folder import last_lines, log_path
from paceline.record.logged import read_logged
from paceline.record.sharpness import RunSharpness, read_sharpness
from paceline.record.writer import write_document
from paceline.settings import SharpnessSettings
from paceline.tables.figures import read_figures
from paceline.trials.converge.accuracy import Reading, find, find_logged
from paceline.trials.converge.series import ALONE, Trial
from paceline.trials.core.bench import Bench, Measured, Status, details, folder_of

FILE = "accuracy.json"  # in a trial's record


class OnBench:
    """Measures trials. Pass every event of the bench to `event`, which notes when each line was printed."""

    def __init__(self, metric: re.Pattern[str] | None, bench: Bench | None = None) -> None:
        self.bench, self._metric = bench, metric
        self._lines: list[tuple[str, float | None]] = []
        self._rest, self._began = "", 0.0
        self.found = False  # whether any trial gave an accuracy

    def event(self, event: Event) -> None:
        if not isinstance(event, Output):
            return
        *lines, self._rest = (self._rest + event.data.decode(errors="replace")).replace("\r", "\n").split("\n")
        self._lines += [(line, time.monotonic() - self._began) for line in lines]

    def __call__(self, name: str, mods: tuple[str, ...], seed: int) -> Trial:
        assert self.bench is not None
        self._lines, self._rest, self._began = [], "", time.monotonic()
        all_mods = (*self.bench.settings.mods, *mods)
        measured = self.bench.measure(name, mods=all_mods, seed_shift=seed, sharpness=self._sharpness(name, seed))
        if not measured.record:
            return Trial(accuracy=None, unfinished=True, trouble=measured.message)
        path = Path(measured.record) / FILE
        if path.exists():  # this series was resumed, and the trial has run before
            trial = msgspec.json.decode(path.read_bytes(), type=Trial)
        else:
            trial = self._read(measured)
            write_document(path, trial)
        self.found = self.found or bool(trial.curve)
        if not self.found and not trial.trouble and trial.diverged is None:
            raise self._nothing_found(measured)
        return trial

    def _sharpness(self, name: str, seed: int) -> SharpnessSettings | None:
        """The one-worker run saves its weights in its record; other runs measure the loss on the line from there."""
        assert self.bench is not None
        asked, alone = self.bench.settings.sharpness, f"{ALONE.replace(' ', '')}.seed{seed}"
        if asked is None or name == alone:
            return asked and dataclasses.replace(asked, keep=True)
        return dataclasses.replace(asked, line_from=str((self.bench.record / "trials" / folder_of(alone)).resolve()))

    def _read(self, measured: Measured) -> Trial:
        folder = Path(measured.record)
        steps = read_steps(folder, 0)
        run = read_run(folder)
        diverged = next((step.step for step in steps if not step.finite), None)
        failed = bool(run.outcome and run.outcome.exit_code)
        readings = self._readings(folder, run.started)
        last = readings[-1].value if readings else math.nan
        # A script that raises because its loss diverged has a result: it diverged.
        trouble = measured.message if failed and diverged is None else ""
        if measured.status is Status.TOO_SHORT and not steps:
            trouble = measured.message
        return Trial(
            accuracy=last if math.isfinite(last) else None,
            curve=[(r.seconds, r.value if math.isfinite(r.value) else None) for r in readings],
            samples_per_s=measured.samples_per_s or read_figures(folder).samples_per_s,
            steps=len(steps),
            seconds=measured.seconds,
            diverged=diverged,
            trouble=trouble,
            out_of_memory=measured.status is Status.MEMORY,
            unsupported=measured.status is Status.UNSUPPORTED,
            sharpness=self._read_sharpness(folder, bool(trouble)),
        )

    def _read_sharpness(self, folder: Path, failed: bool) -> RunSharpness | None:
        assert self.bench is not None
        if self.bench.settings.sharpness is None or failed:
            return None
        return read_sharpness(folder) or RunSharpness(trouble="not measured: the script did not run to its end")

    def _readings(self, folder: Path, began: float) -> list[Reading]:
        logged = find_logged(read_logged(folder), began) if self._metric is None else []
        if logged:
            return logged
        lines = [*self._lines, (self._rest, None)] if self._lines else []
        if not lines and log_path(folder, 0).exists():
            text = log_path(folder, 0).read_text(errors="replace")
            lines = [(line, None) for line in text.replace("\r", "\n").splitlines()]
        return find(lines, self._metric)

    def _nothing_found(self, measured: Measured) -> UsageError:
        said = "\n".join(f"    {line}" for line in last_lines(measured.record, 0)) or "    (nothing)"
        if self._metric is not None:
            what = f"--metric {self._metric.pattern!r} matches nothing in the script's output."
        else:
            what = "The script's output has no accuracy."
        return UsageError(
            f"{what} Its last lines:\n{said}",
            advice=r"Give a pattern whose first group is the accuracy: --metric 'top1 ([\d.]+)', or log the accuracy "
            "in the script: paceline.log(accuracy=…)",
        )


def failure(bench: Bench, name: str) -> str:
    """The full error of a failed trial."""
    measured = bench.journal.trials.get(name)
    return details(measured) if measured is not None else ""
