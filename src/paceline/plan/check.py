"""Predicts the runs that records already hold, and compares: how far the model can be trusted on this machine.

A run is predicted from other runs of the same script only: it is never its own reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec

from paceline.errors import PacelineError, RecordError
from paceline.plan.cluster import Cluster
from paceline.plan.fabric import Fabric
from paceline.plan.step import MODEL_ERROR, Model, Setup, best_algorithm
from paceline.plan.workload import read_workload
from paceline.record import read_run

LEAST, ENOUGH = 0.1, 3  # the smallest error that is believed, and the number of runs for it


class Checked(msgspec.Struct, kw_only=True):
    """One run: seconds of a step."""

    record: str
    script: str
    workers: int
    batch: int
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


class Check(msgspec.Struct, kw_only=True):
    """All runs that could be predicted, and why others could not."""

    runs: list[Checked]
    left_out: dict[str, int]

    @property
    def median(self) -> float:
        return median(abs(run.off) for run in self.runs) if self.runs else 0.0

    @property
    def worst(self) -> float:
        return max((abs(run.off) for run in self.runs), default=0.0)


def check(folders: Iterable[Path], cluster: Cluster) -> Check:
    """Predicts each run of each series on several workers from the series' other runs."""
    found = Check(runs=[], left_out={})

    def leave(why: str) -> None:
        found.left_out[why] = found.left_out.get(why, 0) + 1

    for folder in folders:
        try:
            run = read_run(folder)
            if not any(folder.glob("trials/*/run.json")):
                leave("a single run: nothing to predict it from")
                continue
            everything = read_workload(folder)
        except (RecordError, PacelineError):
            leave("no steps that can be used")
            continue
        for known in everything.known:
            if known.workers < 2:
                continue
            if known.hosts > cluster.hosts or known.workers > cluster.workers:
                leave("more workers than the cluster")
                continue
            try:
                work = read_workload(folder, leave_out=known.name)
            except RecordError:
                leave("no other run with as many threads")
                continue
            others = {(other.workers, other.batch) for other in work.known}
            if not work.ready:
                leave("no bytes of gradients in its other runs")
            elif (known.workers, known.batch) in others and len(others) == 1:
                leave("its other runs are repetitions of it")
            else:
                model = Model(work, Fabric(cluster))
                setup = best_algorithm(model, Setup(workers=known.workers, batch=known.batch))
                predicted = model.predict(setup).seconds
                found.runs.append(
                    Checked(
                        record=f"{folder.name}/{known.name}",
                        script=Path(run.script).name,
                        workers=known.workers,
                        batch=known.batch,
                        predicted=predicted,
                        measured=known.seconds,
                    )
                )
    return found


def error_of(found: Check) -> float:
    """The half width of an interval: the worst error on this record's own runs, but never less than the usual one, or,
    with three runs or more, a tenth."""
    return max(found.worst, LEAST if len(found.runs) >= ENOUGH else MODEL_ERROR)
