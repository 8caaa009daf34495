"""What the trials of `converge` recorded about their losses, which the verdict does not have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

from paceline.errors import RecordError
from paceline.reports.converge import Curve
from paceline.trials.converge.series import Row, Verdict
from paceline.view.records.reading import read_tail
from paceline.view.records.record import Opened

STEPS = 8 << 20  # bytes of a trial's steps that are read for its losses: about 30,000 steps
POINTS = 200  # of a loss curve: each is the mean over a stretch of steps, because single losses scatter


def losses(verdict: Verdict, record: Opened) -> dict[str, list[Curve]]:
    """By technique, the training loss of each seed."""
    found: dict[str, list[Curve]] = {}
    for name in record.trials:
        folder = name.rpartition("/")[2]
        row = next((row for row in verdict.rows if _is_trial_of(folder, row)), None)
        if row is None:
            continue
        try:
            steps, cut = read_tail(record.folder.folder("trials", folder).file("steps.rank0.jsonl"), STEPS)
        except RecordError:
            continue  # the trial's own page names the damaged file
        curve = _smooth([(float(step.step), step.loss) for step in steps if step.loss is not None])
        if curve and not cut:
            found.setdefault(row.technique, []).append(curve)
    return found


def _is_trial_of(folder: str, row: Row) -> bool:
    """Whether this is the folder of a trial of the row: `lr_scale+warmup.seed0`."""
    plain = re.sub(r"[^A-Za-z0-9._=+:,-]", "-", row.technique.replace(" ", ""))
    return re.fullmatch(re.escape(plain) + r"\.seed\d+(\.in\d+)?", folder) is not None


def _smooth(losses: Sequence[tuple[float, float]]) -> Curve:
    """Means over stretches of steps: at least eight stretches, at most POINTS."""
    size = max(1, min(len(losses) // 8, 16), -(-len(losses) // POINTS))
    parts = [losses[start : start + size] for start in range(0, len(losses) - size + 1, size)]
    return [(part[-1][0], fmean(loss for _, loss in part)) for part in parts]
