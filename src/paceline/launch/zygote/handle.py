"""The launcher's handle on its zygote: one process that has imported torch and forks workers.

Importing torch takes seconds, forking takes milliseconds: one zygote serves all the workers of a run, and all the runs
of a series of trials. `zygote/process.py` is the zygote's own side.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from types import TracebackType
from typing import Self

from paceline.errors import LaunchError
from paceline.launch import messages, processes
from paceline.launch.failures import limits
from paceline.launch.worker import allocator

_PATIENCE = 10.0  # seconds for the zygote to end by itself


class Zygote:
    """Start the zygote as early as possible: it imports torch while the caller does other work."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self.ready: messages.Ready | None = None

    @classmethod
    def start(cls) -> Self:
        """Returns at once. The zygote keeps the launcher's standard input for rank 0, and ends when the launcher ends,
        even by SIGKILL. Raises LaunchError if the zygote cannot be started."""
        limits.prove(0)
        ours, its = socket.socketpair()
        # A separate session: Ctrl-C reaches only the launcher, which decides. -P: a file in the current folder must
        # not shadow torch.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paceline.launch.zygote.process", str(its.fileno())],
            pass_fds=[its.fileno()],
            start_new_session=True,
            env=allocator.zygote_environment(),
        )
        its.close()
        return cls(process, ours)

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: messages.Spawn | messages.Signal, descriptors: list[int] | None = None) -> None:
        """Sends one message. Raises LaunchError if the zygote is gone."""
        try:
            messages.send(self._connection, message, descriptors)
        except OSError as error:
            raise self._gone() from error

    def receive(self) -> messages.Ready | messages.Forked | messages.Ended | messages.Swept:
        """Waits for the zygote's next message. Raises LaunchError if the zygote is gone, could not import torch, or
        could not fork a worker."""
        try:
            types = (
                messages.Ready | messages.Broken | messages.Forked | messages.Unforked | messages.Ended | messages.Swept
            )
            message, _ = messages.receive(self._connection, types)
        except (OSError, EOFError) as error:
            raise self._gone() from error
        if isinstance(message, messages.Broken):
            raise LaunchError(
                f"Workers cannot be started with {sys.executable}: {message.reason}",
                advice=message.advice,
            )
        if isinstance(message, messages.Unforked):
            raise limits.unforked(message.rank, message.number)
        if isinstance(message, messages.Ready):
            self.ready = message
        assert isinstance(message, messages.Ready | messages.Forked | messages.Ended | messages.Swept)
        return message

    @property
    def is_frozen(self) -> bool:
        """Whether a signal (SIGSTOP) stopped the zygote."""
        return processes.is_frozen(processes.state_of(self.pid))

    def wake(self) -> None:
        """Continues a frozen zygote: only a running one can end its workers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def destroy(self) -> None:
        """Kills the zygote and its process tree from outside, in bounded time."""
        if self._process.poll() is None:
            processes.end_tree(self.pid)
        self._process.wait()

    def close(self) -> None:
        """Ends the zygote and its process tree in bounded time, whether the zygote answers or not."""
        with contextlib.suppress(OSError):  # the zygote is gone
            self._connection.shutdown(socket.SHUT_RDWR)  # a fork of this process may keep its copy open
        self._connection.close()
        if self.ready is None:
            # The zygote has no workers yet, and reads no message before torch is imported.
            self._process.kill()
        self.wake()
        try:
            self._process.wait(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gone(self) -> LaunchError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return LaunchError("The process that forks the workers no longer answers.")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return LaunchError(
            f"The process that forks the workers (pid {self._process.pid}) {how}.",
            advice="If you did not kill it, the machine may be out of memory: see dmesg.",
        )


_EVERY = 1.0  # seconds between two checks


class Patience:
    """Checks the zygote's state every second during a run."""

    def __init__(self, zygote: Zygote, warning: float, abort: float | None) -> None:
        self._zygote, self._warning, self._abort = zygote, warning, abort
        self._next, self._frozen_since = 0.0, -1.0
        self._told = False

    def look(self, now: float) -> str:
        """Returns a warning for the terminal, once per freeze; otherwise an empty text. Raises LaunchError after
        `--stall-abort` seconds."""
        if now < self._next:
            return ""
        self._next = now + _EVERY
        if not self._zygote.is_frozen:
            self._frozen_since, self._told = -1.0, False
            return ""
        if self._frozen_since < 0:
            self._frozen_since = now
        frozen = now - self._frozen_since
        found = f"The process that forks the workers (pid {self._zygote.pid}) is frozen (stopped by a signal)"
        if self._abort and frozen >= self._abort:
            raise LaunchError(
                f"{found} for {frozen:.0f} s (--stall-abort).",
                advice="Start the run again without stopping that process.",
            )
        limits = [limit for limit in (self._warning, self._abort) if limit]
        if self._told or not limits or frozen < min(limits):
            return ""
        self._told = True
        return f"{found}, and the run cannot end without it. To continue it, type: kill -CONT {self._zygote.pid}"
