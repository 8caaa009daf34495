"""Collectives as torch wants them: begun at once, waited for later, in the order in which they were begun.

One that is to be waited for anyway runs in the caller's own thread, if nothing is ahead of it: handing it to another
thread would take longer than most of them do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.comm.call_site import script_line
from paceline.errors import PacelineError


class WaitTimeoutError(PacelineError, RuntimeError):
    """`wait(timeout)` was given up. A RuntimeError, as torch's own backends raise one, so that a script that catches
    theirs catches ours."""


class Work(dist.Work):
    """One collective. What it raised, `wait` raises."""

    def __init__(self, result: Any, source: int = -1, *, name: str = "collective") -> None:
        super().__init__()
        self.source, self.name = source, name
        self.site = ""  # where in the script it was begun
        self._result, self._error = result, None
        self._done = threading.Event()
        self._future: Any = None
        self._ended: Any = None
        self._lock = threading.Lock()

    def finish(self, error: Any = None) -> bool:
        """Says whether `settle` is to be called after: somebody holds a future."""
        with self._lock:
            self._error = error
            self._done.set()
            return self._future is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for its end, or raises WaitTimeoutError after `timeout`; zero is torch's "no limit". As with Gloo's
        collectives, a wait that was given up leaves the work under way and the group usable: wait again, or go on."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise WaitTimeoutError(
                f"Operation timed out! The {self.name} begun at {self.site} has not ended after {seconds:g} s.",
                advice="It is still under way: wait for it again, or with a longer timeout. If it never ends, another "
                "rank has not made the same call.",
            )
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        with self._lock:
            is_first = self._future is None
            if is_first:
                # DDP looks at futures in C++, which knows an error as such only where a callback has raised it.
                self._ended = torch.futures.Future()
                self._future = self._ended.then(self._give)
            is_done = self._done.is_set()
        if is_first and is_done:
            self.settle()
        return self._future

    def settle(self) -> None:
        """Gives the future its value, in this thread: what hangs on it runs here, and may wait for other works."""
        self._ended.set_result(None)

    def _give(self, ended: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> Any:
        return self._result

    def _source_rank(self) -> int:
        return self.source

    def source_rank(self) -> int:
        return self.source


class Queue:
    """Runs works one after the other."""

    def __init__(self, name: str, set_site: Callable[[Callable[[], str]], None]) -> None:
        """`set_site` is told where the call that is about to run was made."""
        self._name, self._set_site = name, set_site
        self._todo: deque[tuple[Work, Callable[[], Any], bool]] = deque()
        self._change = threading.Condition()
        self._running = self._closed = False
        self._threads = self._idle = 0

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._todo

    def run(self, work: Work, function: Callable[[], Any], *, later: bool) -> Work:
        """Runs it now, in this thread; or `later` in the queue's own."""
        if not later:
            self.run_now(function)
            work.finish()
            return work
        with self._change:
            work.site = script_line()
            self._todo.append((work, function, torch.is_inference_mode_enabled()))
            if not self._threads:
                self._hire()
            self._change.notify_all()
        return work

    def run_now(self, function: Callable[[], Any]) -> None:
        """Runs it in this thread, behind what was begun before."""
        with self._change:
            while self._todo or self._running:
                self._change.wait()
            self._running = True
        try:
            self._set_site(script_line)
            function()
        finally:
            self._stop_running()

    def close(self) -> None:
        """What was begun is run; then the queue's threads end, and with them all that they hold."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _hire(self) -> None:
        self._threads += 1
        threading.Thread(target=self._serve, name=f"paceline {self._name}", daemon=True).start()

    def _serve(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        with self._change:
            self._idle += 1
            while self._running or not (self._todo or self._closed):
                self._change.wait()
            self._idle -= 1
            if not self._todo:
                self._threads -= 1
                return False
            work, function, inference = self._todo.popleft()
            self._running = True
        site = work.site  # not through the work: what it holds must go with it
        self._set_site(lambda: site)
        error: Exception | None = None
        try:
            with torch.inference_mode(inference):  # tensors that were made in it can be written to in it only
                function()
        except Exception as raised:
            error = raised
        has_future = work.finish(error)
        self._stop_running()
        if has_future:
            # What hangs on the future may begin other works and wait for them: another thread must be there to run
            # them.
            with self._change:
                if not self._idle:
                    self._hire()
            work.settle()
        return True

    def _stop_running(self) -> None:
        with self._change:
            self._running = False
            self._change.notify_all()


class Lines:
    """Queues for the messages of a pair: those of one tag keep their order, and wait for no other tag's."""

    def __init__(self, name: str, set_site: Callable[[Callable[[], str]], None]) -> None:
        self._name, self._set_site = name, set_site
        self._queues: list[tuple[int, Queue]] = []  # the tag that each was last used for

    def run(self, tag: int, work: Work, function: Callable[[], Any]) -> Work:
        """Later. Called by one thread at a time."""
        at = next((i for i, (last, _) in enumerate(self._queues) if last == tag), None)
        if at is None:  # as many queues as there are tags under way at once
            at = next((i for i, (_, queue) in enumerate(self._queues) if queue.is_idle), len(self._queues))
        queue = self._queues[at][1] if at < len(self._queues) else Queue(self._name, self._set_site)
        self._queues[at : at + 1] = [(tag, queue)]
        return queue.run(work, function, later=True)

    def close(self) -> None:
        for _, queue in self._queues:
            queue.close()
