"""A pool of threads that run tasks. The garbage collector may close a pool at any point, so `close` takes no lock."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """Starts a daemon thread."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


def wait_for_all(seconds: float) -> None:
    """Waits up to `seconds` for the threads that were told to end."""
    until = time.monotonic() + seconds
    for thread in list(_started):
        thread.join(max(0.0, until - time.monotonic()))


class Task:
    """A function call in a pool. `result` waits for the call, and raises its exception."""

    __slots__ = ("_done", "_error", "_function", "_latch", "_value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._latch = threading.Lock()
        self._latch.acquire()
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        function, self._function = self._function, None
        try:
            if function is not None:
                self._value = function()
        except BaseException as error:
            self._error = error
        self._done = True
        self._latch.release()

    def done(self) -> bool:
        return self._done

    def cancel(self) -> None:
        """Drops the task if it has not begun yet."""
        self._function = None

    def wait(self) -> None:
        if not self._done:
            self._latch.acquire()
            self._latch.release()

    def result(self) -> Any:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Threads:
    """`size` threads, each started when a task needs it."""

    def __init__(self, size: int, name: str) -> None:
        self.size, self._name = size, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[[], Any]) -> Task:
        task = Task(function)
        if not self.size:  # closed at the script's end: no thread would run the task, and the caller would hang
            task.run()
            return task
        if len(self._threads) < self.size:
            self._threads.append(start(self._name, _work, self._tasks))
        self._tasks.put(task)
        return task

    def close(self, *, wait: bool) -> None:
        """Ends the threads after the tasks that were submitted."""
        threads, self._threads, self.size = self._threads, [], 0
        for _ in threads:
            self._tasks.put(None)
        if wait:
            for thread in threads:
                thread.join()


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # otherwise this thread would hold the result until the next task
