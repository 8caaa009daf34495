"""Threads that do what they are handed. They can be let go of from anywhere, also by the garbage collector, which comes
in the middle of anything: so nothing here holds a lock that others wait for."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that does not keep the process from ending."""
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    _started.add(thread)
    thread.start()
    return thread


def wait_for_all(seconds: float) -> None:
    """Those that were told to end, as long as that."""
    until = time.monotonic() + seconds
    for thread in list(_started):
        thread.join(max(0.0, until - time.monotonic()))


class Task:
    """Something that was handed over. `result` waits for it, and raises what it raised."""

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
        """It is not begun any more; what was begun is done."""
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
    """`size` of them. Started when there is something to do."""

    def __init__(self, size: int, name: str) -> None:
        self.size, self._name = size, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, function: Callable[[], Any]) -> Task:
        task = Task(function)
        if not self.size:  # closed, at the script's end: no thread would take it, and the caller would wait for ever
            task.run()
            return task
        if len(self._threads) < self.size:
            self._threads.append(start(self._name, _work, self._tasks))
        self._tasks.put(task)
        return task

    def close(self, *, wait: bool) -> None:
        """Ends them, when they have done what they were handed."""
        threads, self._threads, self.size = self._threads, [], 0
        for _ in threads:
            self._tasks.put(None)
        if wait:
            for thread in threads:
                thread.join()


def _work(tasks: SimpleQueue[Task | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # its result is the consumer's now
