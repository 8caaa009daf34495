"""`--track wandb` and `--track mlflow`: rank 0 logs each step's metrics beside those of the script, as `paceline/…`.

They go to the run that the script has begun; a script that has begun none by its first steps gets a run of its own. The
libraries are imported only if they are asked for. An error of theirs is told once, and ends the tracking, not the run.
"""

from __future__ import annotations

import importlib
import queue
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from paceline.comm.pulse import Pulse
from paceline.record.scalars import scalars
from paceline.record.schema import Step

PREFIX = "paceline/"
LAST = 30.0  # seconds that the end of a run waits for what was not sent yet
BATCH = 800  # metrics in one request: MLflow takes 1000


class Tracker(Protocol):
    """Called by the script's main thread."""

    def add(self, steps: Sequence[Step]) -> None: ...

    def close(self) -> None: ...


class Tracking:
    """The trackers of rank 0. `add` is called with the steps that have ended, `close` once, at the end."""

    def __init__(self, names: Sequence[str], pulse: Pulse, *, script: str, record: str) -> None:
        self._pulse = pulse
        self._trackers: dict[str, Tracker] = {name: KINDS[name](script, record) for name in names}

    def add(self, steps: Sequence[Step]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.add(steps)
            except Exception as error:
                self._give_up(name, error)

    def close(self) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.close()
            except Exception as error:
                self._give_up(name, error)
        self._trackers.clear()

    def _give_up(self, name: str, error: Exception) -> None:
        self._trackers.pop(name, None)
        told = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        self._pulse.notice(f"--track {name}: {type(error).__name__}: {told}. The run goes on without it.")


class WandbTracker:
    """In the script's run, the metrics are added to the row that the script logs next, as means over the steps since
    its row before: so the script's own rows and step numbers stay as they are. A run of our own has a row a step."""

    def __init__(self, script: str, record: str) -> None:
        self._script, self._record = script, record
        self._own: Any = None
        self._theirs: Any = None  # the script's run
        self._row = -1
        self._sums: dict[str, tuple[float, int]] = {}

    def add(self, steps: Sequence[Step]) -> None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        if run is not None:
            self._theirs = run
            self._add_to_row(run, steps)
        elif self._theirs is None:
            if self._own is None:
                self._own = self._begin()
            for step in steps:
                self._own.log(_named(step), step=step.step)

    def close(self) -> None:
        if self._own is not None:
            self._own.finish()

    def _add_to_row(self, run: Any, steps: Sequence[Step]) -> None:
        if run.step != self._row:
            self._row, self._sums = run.step, {}
        for step in steps:
            for name, value in _named(step).items():
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + value, count + 1
        means = {name: total / count for name, (total, count) in self._sums.items()}
        run.log({**means, f"{PREFIX}step": steps[-1].step}, commit=False)

    def _begin(self) -> Any:
        wandb = importlib.import_module("wandb")
        project = wandb.setup().settings.project or self._script
        # Not as wandb.run: a run that the script begins later must be the script's.
        return wandb.init(project=project, name=self._record, job_type="paceline", reinit="create_new")


class MlflowTracker:
    """A thread sends the metrics: a tracking server may be slow."""

    def __init__(self, script: str, record: str) -> None:
        self._script, self._record = script, record
        self._own = ""  # id of a run of our own
        self._theirs = ""  # … of the script's last run
        self._client: Any = None
        self._queue: queue.SimpleQueue[tuple[Any, str, list[Any]] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._send, name="paceline-track", daemon=True)
        self._thread.start()

    def add(self, steps: Sequence[Step]) -> None:
        if self._error is not None:
            raise self._error
        mlflow = importlib.import_module("mlflow")
        active = mlflow.active_run()  # of this thread
        if active is not None and active.info.run_id != self._theirs:
            self._theirs, self._client = active.info.run_id, mlflow.MlflowClient()
        elif not self._theirs and not self._own:
            self._client = mlflow.MlflowClient()
            self._own = self._begin(self._client)
        metric = importlib.import_module("mlflow.entities").Metric
        metrics = [
            metric(name, value, int(step.at * 1000), step.step)
            for step in steps
            for name, value in _named(step).items()
        ]
        self._queue.put((self._client, self._theirs or self._own, metrics))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(LAST)
        if self._error is not None:
            raise self._error
        if self._own:
            self._client.set_terminated(self._own)

    def _begin(self, client: Any) -> str:
        known = client.get_experiment_by_name(self._script)
        experiment = client.create_experiment(self._script) if known is None else known.experiment_id
        return str(client.create_run(experiment, run_name=self._record).info.run_id)

    def _send(self) -> None:
        while (job := self._queue.get()) is not None:
            client, run, metrics = job
            while not self._queue.empty() and len(metrics) < BATCH:  # what has come meanwhile
                more = self._queue.get()
                if more is None or more[:2] != (client, run):
                    self._take(client, run, metrics)
                    if more is None:
                        return
                    client, run, metrics = more
                else:
                    metrics = metrics + more[2]
            self._take(client, run, metrics)

    def _take(self, client: Any, run: str, metrics: list[Any]) -> None:
        try:
            for first in range(0, len(metrics), BATCH):
                if self._error is None:
                    client.log_batch(run, metrics=metrics[first : first + BATCH])
        except Exception as error:
            self._error = error


def _named(step: Step) -> dict[str, float]:
    return {f"{PREFIX}{name}": value for name, value in scalars(step).items()}


KINDS: dict[str, Any] = {"wandb": WandbTracker, "mlflow": MlflowTracker}
