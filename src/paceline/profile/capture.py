"""Traces a few steps of one worker after its warm-up, into `trace.rankR.json.gz`.

The recorder decides where a step ends. Before and after the trace, the overhead is one comparison per step.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import time
import warnings
from os import path as os_path
from os import replace, strerror, unlink  # bound here, before a script's file functions are redirected
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from paceline.profile.facts import Gathering
from paceline.profile.marks import Marks
from paceline.record.private import opened
from paceline.record.settling import settle
from paceline.record.stopping import stop
from paceline.script.recorder import EnoughSteps, Recorder
from paceline.script.seams.stage import Stage
from paceline.settings import ProfileSettings

LOOKS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # after these steps rank 0 decides whether the times have settled
PATIENCE = 60.0  # seconds after which the trace begins even with fewer than eight steps, for scripts with long steps
TRIAL = 1  # steps under the profiler before the kept ones: in its first step the profiler allocates its buffers


class Capture:
    """Subscribes to the seams of one worker, after the recorder. Every worker has a Capture, and all begin at the same
    step."""

    def __init__(self, stage: Stage, recorder: Recorder, folder: Path, asked: ProfileSettings) -> None:
        self.stage, self.recorder, self.asked = stage, recorder, asked
        self.path = folder / f"trace.rank{stage.group.rank}.json.gz"
        self._marks = Marks(stage.watch)
        self._gathering = Gathering(stage, recorder, folder)
        self._profiler: profile | None = None
        self._first = 0  # first step of the trace
        self._seen = 0  # number of steps seen
        self._done = False
        self._seconds: list[float] = []
        self._ended = stage.watch.now()
        self._begun = time.perf_counter()
        stage.subscribe(self)

    def after_step(self, optimizer: Any) -> None:
        if self.recorder.steps != self._seen:
            self._seen = self.recorder.steps
            self._step_ended()

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        self.after_step(None)

    def on_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Ends and writes a trace that is under way. Called however the script ends."""
        if self._profiler is not None and not self._done:
            self._stop()
        self._gathering.write()

    def _step_ended(self) -> None:
        if self._done:
            self.recorder.traced = False  # after the step in which the trace was written
            return
        if self._profiler is not None:
            if self._seen >= self._first + self.asked.steps - 1:
                self._stop()
                if not self.asked.whole_run:
                    self.stage.pulse.notice(
                        f"Steps {self._first} to {self._seen} are traced. The script is stopped here; to run it to its "
                        "end, add: --to-the-end"
                    )
                    raise EnoughSteps
            else:
                self._profiler.step()
            return
        now = self.stage.watch.now()
        self._seconds.append(now - self._ended)
        self._ended = now
        if self._is_warm():
            self._start()

    # -- when --------------------------------------------------------------------------------------------------------

    def _is_warm(self) -> bool:
        if self.asked.warm_up is not None:
            return self._seen + TRIAL >= self.asked.warm_up
        if self._seen not in LOOKS:
            return False
        # The first step's time includes the script's set-up before it.
        late = self._seen == LOOKS[-1] or time.perf_counter() - self._begun > PATIENCE
        answer = torch.tensor([late or settle(self._seconds) is not None], dtype=torch.uint8, device="cpu")
        self.stage.group.broadcast(answer, "the decision to start the trace")
        return bool(answer.item())

    # -- the trace -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._first = self._seen + 1 + TRIAL
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=self._action,
            record_shapes=True,
            profile_memory=True,
            with_stack=self.asked.stack,
        )
        self._profiler.step_num = self._seen + 1  # so that the profiler's steps have the script's numbers
        self._marks.lay()
        self.recorder.traced = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns authors of schedules, and this schedule is not the user's
            self._profiler.start()

    def _action(self, step: int) -> ProfilerAction:
        return ProfilerAction.WARMUP if step < self._first else ProfilerAction.RECORD

    def _stop(self) -> None:
        self._done = True
        profiler = self._profiler
        assert profiler is not None
        self._marks.lift()
        last = self.recorder.steps
        if last >= self._first:
            world, rank = self.stage.group.world, self.stage.group.rank
            told = {"rank": rank, "world": world, "first": self._first, "last": last}
            profiler.add_metadata_json("paceline", json.dumps(told))
            if world > 1 and not dist.is_initialized():
                # torch writes the same entry if the script has a process group: other trace readers expect it.
                theirs = {"backend": self.stage.group.backend, "rank": rank, "world_size": world}
                profiler.add_metadata_json("distributedInfo", json.dumps(theirs))
        profiler.stop()
        if last >= self._first:
            self._write(profiler)
        self._profiler = None

    def _write(self, profiler: profile) -> None:
        plain = self.path.with_name(f".{self.path.stem}")
        fresh = self.path.with_name(f".{self.path.name}")
        try:
            profiler.export_chrome_trace(str(plain))
            prove_complete(plain)
            with (
                opened(fresh) as packed,
                open(plain, "rb") as source,
                gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=3) as file,
            ):
                while chunk := source.read(1 << 20):
                    file.write(chunk)
            replace(fresh, self.path)
        except OSError as error:
            stop(self.path, error)
        finally:
            for left in (plain, fresh):
                with contextlib.suppress(OSError):
                    unlink(left)


def prove_complete(path: Path) -> None:
    """OSError if a trace has no end: torch writes it in native code, which does not tell of a full disk."""
    with open(path, "rb") as file:
        file.seek(max(0, os_path.getsize(path) - 64))
        if not file.read().rstrip().endswith(b"}"):
            raise OSError(errno.ENOSPC, strerror(errno.ENOSPC), str(path))
