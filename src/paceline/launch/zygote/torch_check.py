"""Looks at torch in a forked process, while the zygote does other work: see `script/canary.py`.

In a process of its own, because the zygote must use neither autograd, whose threads do not survive a fork, nor the
random stream, which its workers inherit.
"""

from __future__ import annotations

import contextlib
import os
import signal

import torch

from paceline.script import canary


class TorchCheck:
    """Start it once. `verdict` waits for its end."""

    def __init__(self) -> None:
        self._pid, self._answer = self._fork()
        self._verdict: str | None = None

    def verdict(self) -> str:
        """Why workers would compute other numbers with this torch; empty, if they would not."""
        while self._verdict is None:
            with os.fdopen(self._answer, "rb") as answer:
                told = answer.read().decode()
            with contextlib.suppress(ChildProcessError):  # the zygote reaps all of its child processes
                os.waitpid(self._pid, 0)
            if told:
                self._verdict = told.strip()
            else:  # it was killed with the processes that a run left behind
                self._pid, self._answer = self._fork()
        return self._verdict

    def _fork(self) -> tuple[int, int]:
        """The process, and where it answers."""
        ours, its = os.pipe2(os.O_CLOEXEC)
        if pid := os.fork():
            os.close(its)
            return pid, ours
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            torch.set_num_threads(1)
            found = canary.look()
            told = f"numbers would be wrong with torch {torch.__version__}: {'; '.join(found)}" if found else ""
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        os.write(its, f"{told}\n".encode()[:4096])
        os._exit(0)
