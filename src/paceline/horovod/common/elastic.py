"""Elastic training: state that is committed, and put back when workers are lost."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from paceline.horovod.engine import membership
from paceline.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from paceline.settings import JOINED, of_this_process


class State:
    """What must be the same on all ranks. Subclasses say how it is saved, restored and synchronized."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int]) -> None:
        """`bcast_object` gives all ranks an object of rank 0."""
        self._bcast_object, self._rank = bcast_object, get_rank
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._unwritten, self._written_at = 0, time.monotonic()  # commits since the last one that went to the disk

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Functions that are called after the number of workers has changed: to scale the learning rate anew."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state in memory: training goes on from here when a worker is lost. Every rank calls it."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """HostsUpdatedInterrupt on every rank if the workers have changed."""
        if not membership.is_elastic() and of_this_process().run.saving is None:
            return
        asked = (membership.has_news(), membership.may_grow(), self._is_due())
        news, grows, due = self._bcast_object(asked, name="elastic.news")
        if (grows or due) and self._rank() == 0:
            self.write()
        if grows:
            raise SystemExit(JOINED)
        if news:
            raise HostsUpdatedInterrupt

    def _is_due(self) -> bool:
        """Whether the state is to be written to the disk (`--save-every`). Called at each commit."""
        saving, now = of_this_process().run.saving, time.monotonic()
        self._unwritten += 1
        by_number = saving is not None and saving.commits and self._unwritten >= saving.commits
        by_time = saving is not None and saving.seconds and now - self._written_at >= saving.seconds
        if due := bool(by_number or by_time):
            self._unwritten, self._written_at = 0, now
        return due

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        """Puts back what was committed last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all ranks the state of rank 0."""
        raise NotImplementedError

    def reset(self) -> None:
        """Called when the workers have changed, before `sync`."""

    def write(self) -> None:
        """Writes what was committed to the disk: all workers start again from it, with new ones."""
        raise NotImplementedError

    def read(self) -> None:
        """Reads it, where a run starts from it. Called on rank 0, before the first `sync`."""


class ObjectState(State):
    """Plain objects, given by keyword; each is an attribute."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = kwargs
        self._set_attrs()

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object({name: getattr(self, name) for name in self._saved_state})
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """The function `func(state, …)`, called again when workers are lost: from the last commit if an operation has
    failed, from the present state if the change was noticed at a commit."""

    @functools.wraps(func)
    def call(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        if state._rank() == 0:
            state.read()
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError:
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
            reset()
            state.on_reset()

    return call
