"""Collectives as torch wants them: begun at once, waited for later, in the order in which they were begun.

One that is to be waited for anyway runs in the caller's own thread, if nothing is ahead of it: handing it to another
thread would take longer than most of them do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline.comm.places import script_line


class Work(dist.Work):
    """One collective. What it raised, `wait` raises."""

    def __init__(self, result: Any, source: int = -1) -> None:
        super().__init__()
        self.source = source
        self._result, self._error = result, None
        self._done = threading.Event()
        self._future: Any = None
        self._lock = threading.Lock()

    def finish(self, error: Any = None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
            if self._future is not None:
                self._settle()

    def wait(self, timeout: Any = None) -> bool:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._done.is_set():
                    self._settle()
            return self._future

    def _settle(self) -> None:
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

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
        self._todo: deque[tuple[Work, Callable[[], Any], str]] = deque()
        self._change = threading.Condition()
        self._running = False
        self._thread: threading.Thread | None = None

    def run(self, work: Work, function: Callable[[], Any], *, later: bool) -> Work:
        """Runs it now, in this thread; or `later` in the queue's own."""
        if not later:
            with self._change:
                while self._todo or self._running:
                    self._change.wait()
                self._running = True
            try:
                self._set_site(script_line)
                function()
                work.finish()
            finally:
                self._stop_running()
            return work
        with self._change:
            self._todo.append((work, function, script_line()))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"paceline {self._name}", daemon=True)
                self._thread.start()
            self._change.notify_all()
        return work

    def _serve(self) -> None:
        while True:
            with self._change:
                while self._running or not self._todo:
                    self._change.wait()
                work, function, site = self._todo.popleft()
                self._running = True
            self._set_site(lambda site=site: site)  # type: ignore[misc]
            try:
                function()
            except Exception as error:
                self._stop_running()
                work.finish(error)
            else:
                self._stop_running()
                work.finish()

    def _stop_running(self) -> None:
        with self._change:
            self._running = False
            self._change.notify_all()
