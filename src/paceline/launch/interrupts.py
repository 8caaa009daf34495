"""Signals to a verb: queued for the launcher while workers run, else raised, so that an interrupted verb stops its
workers and writes its record."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from paceline.threads import Bell


class Interrupted(KeyboardInterrupt):
    """A signal ended the verb. `exit_code` is 128 plus the signal's number."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("interrupted")
        self.exit_code = exit_code


def exit_code_of(error: KeyboardInterrupt) -> int:
    """130 for Ctrl-C, 143 for SIGTERM."""
    return error.exit_code if isinstance(error, Interrupted) else 128 + signal.SIGINT


class Signals:
    """Queues SIGINT and SIGTERM for the loop while it runs, and SIGUSR1, by which schedulers announce that time is
    running out, in `warned`. Outside the main thread Python cannot set signal handlers,
    so no signal arrives."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.came: list[int] = []
        self.warned: list[int] = []
        self.answered = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                # nohup or a shell's background job ignores the signal on purpose: it stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.bell.close()
        if self.came and not self.answered:  # the signal came too late for this run: the restored handler gets it
            os.kill(os.getpid(), self.came[0])

    def _take(self, number: int, frame: FrameType | None) -> None:
        (self.warned if number == signal.SIGUSR1 else self.came).append(number)
        self.bell.ring()


@contextmanager
def _handled(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """A signal has this handler while the block runs. Outside the main thread, or if the signal is already ignored or
    handled, the block changes nothing."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL)


def raised_on_sigterm() -> AbstractContextManager[None]:
    """While the block runs, SIGTERM raises Interrupted in the main thread. `launch` handles both signals itself while
    workers run."""
    return _handled(signal.SIGTERM, _raise)


@contextmanager
def held_off() -> Iterator[None]:
    """Ignores SIGINT and SIGTERM while the block runs. Only for a last block that takes a bounded time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def told_of_stops(before: Callable[[], None], after: Callable[[], None]) -> AbstractContextManager[None]:
    """While the block runs, Ctrl-Z (SIGTSTP) calls `before`, stops this process, and calls `after` once it goes on."""

    def stop(number: int, frame: FrameType | None) -> None:
        before()
        os.kill(os.getpid(), signal.SIGSTOP)
        after()

    return _handled(signal.SIGTSTP, stop)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(128 + number)
