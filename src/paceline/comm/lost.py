"""Recognises a lost peer in the error messages of torch's backends, and tells backend errors from other errors."""

from __future__ import annotations

import os
from types import TracebackType

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
