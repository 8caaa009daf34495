"""What ends a run, or work that all workers do together: fatal errors, called-off work, and lost peers.

For a lost peer, diverged workers and a refused script, Paceline raises `Fatal`, a BaseException, which `except
Exception` does not catch. The worker keeps the first failure and reports it to the launcher at once. If the script
catches `Fatal` all the same (a bare `except:`), the next seam or collective raises the failure again, and so does the
end of the script.

A worker that fails alone answers the next collective of its peers, whichever it is, with "called off", so that no peer
waits forever. In shared memory each collective carries this answer in its call descriptor at no extra cost. Gloo and
NCCL collectives cannot carry the answer: within such work (`Group.guarded`) a small exchange in host memory precedes
each of them.
"""

from __future__ import annotations

import os
from types import TracebackType

from paceline.comm.pulse import Pulse
from paceline.errors import PacelineError


class Fatal(BaseException):
    """Carries a PacelineError out of a script."""

    def __init__(self, error: PacelineError) -> None:
        super().__init__(str(error))
        self.error = error


class Ending:
    """The first fatal error of one worker. `stern` is True under `paceline run`: errors are raised as `Fatal`. With the
    Python API `stern` is False: errors stay ordinary exceptions."""

    def __init__(self, pulse: Pulse | None = None) -> None:
        self.stern = False
        self.first: PacelineError | None = None
        self._pulse = pulse

    def carry(self, error: PacelineError) -> BaseException:
        """Returns the exception to raise for this error. Any thread may call this method."""
        if not self.stern:
            return error
        if self.first is None:
            self.first = error
            if self._pulse is not None:
                self._pulse.failed(error)
        return Fatal(self.first)

    def check(self) -> None:
        """Raises the first failure again, if there was one."""
        if self.first is not None:
            raise Fatal(self.first)


class Regrouping(BaseException):
    """A worker is gone, and the others go on without it: what they did together is to be done again by those who are
    left (`Group.regroup`). Not an Exception, for the same reason."""


class CalledOff(BaseException):
    """A worker failed in the current joint work. Not an Exception: a handler in the model's code must not catch it."""


_PEER_LOST_PHRASES = (
    "closed by peer",
    "connection reset",
    "broken pipe",
    "timed out",
    "timeout",
    "connection refused",
    "remote process exited",
    "pair closure",  # Gloo, after a time-out on another pair
    "connection was likely closed",  # torch's store
    "failed to recv",
    "communicator was aborted",  # NCCL
)
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = tuple(os.path.join(_PACKAGE, room, "") for room in ("comm", "wire"))
_TORCHS = f"{os.sep}torch{os.sep}distributed{os.sep}"


def says_lost(text: str) -> bool:
    """Whether a backend's message means that a peer has ended or does not answer, not that a call was wrong."""
    return any(phrase in text.lower() for phrase in _PEER_LOST_PHRASES)


def from_backend(error: BaseException) -> bool:
    """Whether the collective itself raised the error. A signal handler may also raise inside a collective: the handler
    of torch's DataLoader does so when a loader process is killed."""
    filename = innermost(error.__traceback__)
    return filename.startswith(_OURS) or _TORCHS in filename


def innermost(trace: TracebackType | None) -> str:
    """The file of the innermost frame; an empty string without a traceback."""
    filename = ""
    while trace is not None:
        filename, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return filename
