"""How a lost peer shows in what torch's backends say, and which errors are a backend's at all."""

from __future__ import annotations

import os
from types import TracebackType

_GONE = (
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
_BACKENDS = (os.path.dirname(os.path.abspath(__file__)) + os.sep, f"{os.sep}torch{os.sep}distributed{os.sep}")


def says_lost(text: str) -> bool:
    """Whether a backend's message says that a peer is gone or does not answer, and not that a call was wrong."""
    return any(sign in text.lower() for sign in _GONE)


def from_backend(error: BaseException) -> bool:
    """Whether it was raised inside a collective by the collective. A signal handler may raise there, too: torch's
    DataLoader does when one of its processes is killed."""
    filename = innermost(error.__traceback__)
    return filename.startswith(_BACKENDS[0]) or _BACKENDS[1] in filename


def innermost(trace: TracebackType | None) -> str:
    """The file of the innermost frame; empty where there is none."""
    filename = ""
    while trace is not None:
        filename, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return filename
