"""Tracebacks and stacks as the script's author would see them in plain Python: without the frames that run
the script, and without ours in between.
"""

from __future__ import annotations

import os
import traceback
from types import FrameType, TracebackType

import paceline
from paceline.errors import PacelineError, PeerLostError, PeerRaisedError
from paceline.launch import wire

_OURS = os.path.dirname(os.path.abspath(paceline.__file__)) + os.sep
_RUNNERS = ("<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_LONGEST = 200  # lines of a traceback that are kept


def describe(error: BaseException) -> wire.Failed:
    """What the launcher has to know of the exception that ended a script."""
    name = type(error).__qualname__
    if isinstance(error, PacelineError):
        summary = f"{name}: {error.message}"
        text = str(error)
    else:
        summary = _in_a_line(error)
        text = trimmed(error)
    return wire.Failed(name=name, summary=summary, text=text, consequence=_is_consequence(error))


def _in_a_line(error: BaseException) -> str:
    """Type and message. Of a long message its begin: the end is advice, most often (torch.compile's is)."""
    said = [line.strip() for line in "".join(traceback.format_exception_only(error)).splitlines() if line.strip()]
    if isinstance(error, SyntaxError):  # which begins with the line that it is about
        return said[-1]
    return f"{said[0]} {said[1]}" if said[0].endswith(":") and len(said) > 1 else said[0]


def trimmed(error: BaseException) -> str:
    """The traceback without Paceline's frames, unless it was Paceline that broke: then it is all there."""
    whole = traceback.TracebackException.from_exception(error)
    innermost = _innermost(error.__traceback__)
    if innermost is None or not innermost.startswith(_OURS):
        _trim(whole)
    lines = "".join(whole.format()).rstrip().splitlines()
    if len(lines) > _LONGEST:
        lines = [*lines[: _LONGEST // 2], "  ...", *lines[-_LONGEST // 2 :]]
    return "\n".join(lines)


def stack_of(frame: FrameType) -> str:
    """Where a thread is: the script's frames and what they called, ours taken off at both ends."""
    summary = list(traceback.extract_stack(frame))
    if any(not _runs_it(entry.filename) for entry in summary):
        while _runs_it(summary[0].filename):
            summary.pop(0)
        while _runs_it(summary[-1].filename):
            summary.pop()
    return "".join(traceback.format_list(summary)).rstrip()


def _trim(error: traceback.TracebackException) -> None:
    kept = [entry for entry in error.stack if not _runs_it(entry.filename)]
    error.stack[:] = kept
    for other in (error.__cause__, error.__context__):
        if other is not None:
            _trim(other)
    for part in error.exceptions or ():
        _trim(part)


def _runs_it(filename: str) -> bool:
    return filename in _RUNNERS or filename.startswith(_OURS)


def _innermost(trace: TracebackType | None) -> str | None:
    filename = None
    while trace is not None:
        filename, trace = trace.tb_frame.f_code.co_filename, trace.tb_next
    return filename


def _is_consequence(error: BaseException) -> bool:
    """A collective failed: most likely because another worker is gone, which is then what a person must
    hear of."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, (PeerLostError, PeerRaisedError)):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    # A script with a process group of its own gets its errors from torch.
    innermost = _innermost(error.__traceback__) or ""
    return isinstance(error, RuntimeError) and f"{os.sep}torch{os.sep}distributed{os.sep}" in innermost
