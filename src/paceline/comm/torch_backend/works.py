"""Asynchronous execution of collectives: torch's Work objects, and queues that run them in the order of their start.

A synchronous collective runs in the caller's own thread as soon as the earlier collectives have finished: handing it to
another thread would take longer than most collectives do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline import threads
from paceline.comm.call_site import script_line
from paceline.errors import PacelineError


class WaitTimeoutError(PacelineError, RuntimeError):
    """`wait(timeout)` timed out. A RuntimeError, like the time-out errors of torch's own backends, so that a script can
    catch both in the same way."""


class Work(dist.Work):
    """One collective. If the collective raised an error, `wait` raises the same error."""

    def __init__(self, result: Any, source: int = -1, *, name: str = "collective") -> None:
        super().__init__()
        self.source, self.name = source, name
        self.site = ""  # the script line that started it
        self._result, self._error = result, None
        self._done = threading.Event()
        self._future: Any = None
        self._ended: Any = None
        self._lock = threading.Lock()

    def finish(self, error: Any = None) -> bool:
        """Marks the work as finished. Returns whether there is a future: then the caller must call `settle`."""
        with self._lock:
            self._error = error
            self._done.set()
            return self._future is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end of the work, or raises WaitTimeoutError after `timeout`; in torch, zero means no limit. As
        with Gloo, the work goes on after a time-out and the group stays usable: the caller may wait again."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise WaitTimeoutError(
                f"Operation timed out! The {self.name} started at {self.site} has not finished after {seconds:g} s.",
                advice=f"The {self.name} is still running: call wait() again, with a longer timeout. If it never "
                "finishes, another rank has not made the same call.",
            )
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        with self._lock:
            is_first = self._future is None
            if is_first:
                # DDP reads futures in C++, which sees an error only if a callback of the future has raised it.
                self._ended = torch.futures.Future()
                self._future = self._ended.then(self._resolve)
            is_done = self._done.is_set()
        if is_first and is_done:
            self.settle()
        return self._future

    def settle(self) -> None:
        """Sets the value of the future. Its callbacks run in this thread and may wait for other works."""
        self._ended.set_result(None)

    def _resolve(self, ended: Any) -> Any:
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
        """`set_site` is called before each work, with a function that returns the script line of its call."""
        self._name, self._set_site = name, set_site
        self._todo: deque[tuple[Work, Callable[[], Any], bool]] = deque()
        self._change = threading.Condition()
        self._running = self._closed = False
        self._threads = self._idle = 0

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._todo

    def run(self, work: Work, function: Callable[[], Any], *, later: bool) -> Work:
        """Runs the function now, in this thread; with `later`, in the queue's own thread."""
        if not later:
            self.run_now(function)
            work.finish()
            return work
        with self._change:
            work.site = script_line()
            self._todo.append((work, function, torch.is_inference_mode_enabled()))
            if not self._threads:
                self._start_thread()
            self._change.notify_all()
        return work

    def run_now(self, function: Callable[[], Any]) -> None:
        """Runs the function in this thread, after all works that were started earlier."""
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
        """Lets the queue's threads end after they have run all started works."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _start_thread(self) -> None:
        self._threads += 1
        threads.start(f"paceline {self._name}", self._serve)

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
        site = work.site  # the lambda must not keep the work and its tensors alive
        self._set_site(lambda: site)
        error: Exception | None = None
        try:
            with torch.inference_mode(inference):  # inference tensors can only be written in inference mode
                function()
        except Exception as raised:
            error = raised
        has_future = work.finish(error)
        self._stop_running()
        if has_future:
            # Callbacks of the future may start other works and wait for them: another thread must be free to run those
            # works.
            with self._change:
                if not self._idle:
                    self._start_thread()
            work.settle()
        return True

    def _stop_running(self) -> None:
        with self._change:
            self._running = False
            self._change.notify_all()


class MessageQueues:
    """Queues for the messages of a pair of workers. Messages with the same tag keep their order; messages with
    different tags do not wait for each other."""

    def __init__(self, name: str, set_site: Callable[[Callable[[], str]], None]) -> None:
        self._name, self._set_site = name, set_site
        self._queues: list[tuple[int, Queue]] = []  # each with the tag of its last message

    def run(self, tag: int, work: Work, function: Callable[[], Any]) -> Work:
        """Runs the function in a queue's thread. Only one thread at a time may call it."""
        at = next((i for i, (last, _) in enumerate(self._queues) if last == tag), None)
        if at is None:  # reuse an idle queue: as many queues as there are tags in use at the same time
            at = next((i for i, (_, queue) in enumerate(self._queues) if queue.is_idle), len(self._queues))
        queue = self._queues[at][1] if at < len(self._queues) else Queue(self._name, self._set_site)
        self._queues[at : at + 1] = [(tag, queue)]
        return queue.run(work, function, later=True)

    def close(self) -> None:
        for _, queue in self._queues:
            queue.close()
