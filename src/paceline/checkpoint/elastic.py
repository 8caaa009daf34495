"""`paceline.Elastic`: the state of a training script, saved while it runs; a later start goes on from it.

    state = paceline.Elastic(model, optimizer, loader, epoch=0)
    while state.epoch < 10:
        for inputs, targets in loader:
            ...
            state.commit()
        state.epoch += 1

Between two commits the state may be half changed; at a commit it is whole. So everything that needs a whole state
happens there: saves by `--save-every`, the save before a run ends that was told to (SIGTERM, SIGUSR1), and the start
with more workers.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import weakref
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.checkpoint import background
from paceline.checkpoint.crew import this_crew
from paceline.checkpoint.load import load
from paceline.checkpoint.parts import named_parts
from paceline.checkpoint.save import save
from paceline.comm.members import has_room
from paceline.errors import CheckpointError, UsageError
from paceline.script.seams.api import current, in_own_process
from paceline.script.seams.stage import Stage
from paceline.settings import JOINED, PREEMPTED, SaveSettings
from paceline.wire.link import link_of_this_process

_with_state: weakref.WeakSet[Stage] = weakref.WeakSet()


class Wish(IntEnum):
    """What a worker wants to happen at a commit. The largest wish of all workers is done by all."""

    NOTHING = 0
    SAVE = 1
    JOIN = 2  # save, and start again with more workers
    LEAVE = 3  # save, and end


class Elastic:
    """The state of a script: `state = paceline.Elastic(model, optimizer, loader, epoch=0)`.

    Takes what `paceline.save` takes: each object may be a dict or list of several, and `more` are further objects with
    a state (a scheduler, …) or plain values. All of them are attributes of the state. Values are read from there and
    set there: `state.epoch += 1`.

    Every worker makes it, after the objects and before the training loop. If the run goes on from a saved state
    (`--resume`), that is loaded here: objects and values are as they were at a commit, and the next loop over the
    loader continues behind its last batch. Without `paceline run` and its options it does nothing.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, loader: Any = None, **more: Any) -> None:
        given = {"model": model, "optimizer": optimizer, "loader": loader} | more
        given = {name: value for name, value in given.items() if value is not None or name in more}
        _, values = named_parts(given)
        self._values, self._objects = list(values), [name for name in given if name not in values]
        for name in given:
            if hasattr(type(self), name):
                raise UsageError(f"{name!r} cannot be part of a state.", advice="Choose another name.")
        self.__dict__.update(given)
        self._commits = self._saved = self._tried = 0
        self._at, self._told = time.monotonic(), False  # _told: the run is to end
        self._stage: Stage | None = current() if in_own_process() else None
        self._saving: SaveSettings | None = None if self._stage is None else self._stage.run.saving
        if self._stage is None or self._saving is None:
            return
        if self._stage in _with_state:
            raise UsageError("The script makes a second paceline.Elastic.", advice="Give all objects to one.")
        _with_state.add(self._stage)
        self._stage.subscribe(self)
        self._listen()
        if self._saving.resume:
            self._go_on_from(Path(self._saving.resume))

    @property
    def commits(self) -> int:
        """The number of commits so far, also those before a saved state."""
        return self._commits

    def commit(self) -> None:
        """The state is whole: it may be saved now. Every worker calls it at the same places, for example after each
        step, and waits for the others."""
        self._commits += 1
        if self._stage is None or self._saving is None:
            return
        wishes = this_crew().gather(int(self._wish(self._stage, self._saving)), "a commit")
        wish = Wish(max(wishes))
        if wish is Wish.SAVE:
            self._save_or_tell(self._stage, asynchronous=True)
        elif wish is not Wish.NOTHING:
            self._save()
            raise SystemExit(PREEMPTED if wish is Wish.LEAVE else JOINED)

    def on_end(self) -> None:
        """The script has ended: a later start finds nothing left to do. A script that gives up by `sys.exit(1)` may
        have left its state half changed: then the last save stays."""
        error = sys.exception()
        gives_up = isinstance(error, SystemExit) and error.code not in (None, 0)
        if self._stage is None or self._saving is None or not self._commits:
            return
        try:
            background.finish(this_crew())
        except CheckpointError:
            self._saved = -1  # what was in flight is not there: it is tried once more
        if self._commits > self._saved and not gives_up:
            self._save_or_tell(self._stage)

    def _wish(self, stage: Stage, saving: SaveSettings) -> Wish:
        if self._told:
            return Wish.LEAVE
        if stage.group.rank:
            return Wish.NOTHING
        if stage.run.most is not None and (link := link_of_this_process()) is not None and has_room(link):
            return Wish.JOIN
        by_number = saving.commits and self._commits - max(self._saved, self._tried) >= saving.commits
        by_time = saving.seconds and time.monotonic() - self._at >= saving.seconds
        return Wish.SAVE if by_number or by_time else Wish.NOTHING

    def _save_or_tell(self, stage: Stage, *, asynchronous: bool = False) -> None:
        """A save that fails, such as on a full disk, must not end the training: the state before it is kept, and the
        next save is tried at its time. The error comes on every worker."""
        try:
            self._save(asynchronous=asynchronous)
        except CheckpointError as error:
            if not self._tried:
                stage.pulse.notice(f"The state was not saved: {error.message} The run goes on, and tries again.")
            self._tried, self._at = self._commits, time.monotonic()

    def _save(self, *, asynchronous: bool = False) -> None:
        assert self._saving is not None
        objects = {name: getattr(self, name) for name in self._objects}
        values = {name: getattr(self, name) for name in self._values}
        save(self._saving.folder, **objects, step=self._commits, extra=values, asynchronous=asynchronous)
        self._saved, self._at = self._commits, time.monotonic()

    def _go_on_from(self, folder: Path) -> None:
        assert self._stage is not None
        found = load(folder, **{name: getattr(self, name) for name in self._objects})
        self.__dict__.update({name: value for name, value in (found.extra or {}).items() if name in self._values})
        self._commits = self._saved = found.step or 0
        self._stage.pulse.notice(f"The script goes on from commit {self._commits:,} of {folder}.")

    def _listen(self) -> None:
        """A handler that the script has set stays."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                with contextlib.suppress(ValueError):
                    if signal.getsignal(number) is signal.SIG_DFL:
                        signal.signal(number, self._leave)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self._told = True
