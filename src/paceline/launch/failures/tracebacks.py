"""Formats tracebacks and stacks as plain Python shows them: without Paceline's frames and those that run the script."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from types import FrameType

import paceline
from paceline.comm.ending import innermost, says_lost
from paceline.errors import PacelineError, PeerLostError, PeerRaisedError
from paceline.launch import messages
from paceline.launch.failures import texts
from paceline.launch.failures.diagnosis import diagnose
from paceline.launch.failures.limits import shortage
from paceline.settings import shows_own_frames

_OURS = os.path.dirname(os.path.abspath(paceline.__file__)) + os.sep
_RUNNERS = ("<frozen runpy>", "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_HEADER = "Traceback (most recent call last):\n"
_HINT = re.compile(r"\. Did you mean: .*\?$", re.MULTILINE)
_LEFT_OUT = "(Paceline's own lines are left out. To see them, set PACELINE_TRACEBACK=full.)"
_LONGEST_SUMMARY = 1000  # characters


def describe(error: BaseException) -> messages.Failed:
    """The report to the launcher about the exception that ended a script."""
    name = type(error).__qualname__
    summary = f"{name}: {error.message}" if isinstance(error, PacelineError) else _in_a_line(error)
    return messages.Failed(
        name=texts.plain(name),
        summary=texts.plain(texts.shortened(summary, _LONGEST_SUMMARY)),
        text=texts.plain(texts.shortened(whole_text(error))),
        consequence=_is_consequence(error),
    )


def whole_text(error: BaseException) -> str:
    """The text to show for an exception: its trimmed traceback and a diagnosis. A PacelineError, and a shortage of
    resources inside Paceline's own code, get no traceback."""
    if isinstance(error, PacelineError):
        return str(error)
    short = shortage(error)
    if short is not None and innermost(error.__traceback__).startswith(_OURS):
        return "\n".join(short)
    meaning = diagnose(error)
    return trimmed(error) + (f"\n\n{meaning}" if meaning else "")


def _in_a_line(error: BaseException) -> str:
    """Type and message in one line. A long message keeps its beginning: its end is usually advice (torch.compile's)."""
    said = [line.strip() for line in "".join(traceback.format_exception_only(error)).splitlines() if line.strip()]
    if isinstance(error, SyntaxError):  # its text begins with the faulty line of code and ends with the message
        return said[-1]
    line = f"{said[0]} {said[1]}" if said[0].endswith(":") and len(said) > 1 else said[0]
    return _hinted(line, error)


def trimmed(error: BaseException) -> str:
    """The traceback without Paceline's frames, as plain Python prints it; the whole traceback if the script has no part
    in it. An error that was raised in a function that Paceline has replaced (torch.randn) has a note."""
    whole = traceback.TracebackException.from_exception(error)
    ours = innermost(error.__traceback__).startswith(_OURS)
    unread = isinstance(error, SyntaxError)  # the script's own file could not be compiled
    theirs = any(not _is_hidden(entry.filename) for entry in whole.stack)
    if shows_own_frames() or not (theirs or unread):
        return _hinted("".join(whole.format()).rstrip(), error)
    _trim(whole)
    lines = list(whole.format())
    if unread and not whole.stack and len(lines) > 1:
        lines = [line for line in lines if line != _HEADER]
    text = _hinted("".join(lines).rstrip(), error)
    return f"{text}\n\n{_LEFT_OUT}" if ours and not unread else text


def hint_of(error: BaseException) -> str:
    """Python's own suggestion: ". Did you mean: 'loss'?", or nothing. Until Python 3.12, only the interpreter's own
    excepthook knows it, and not the module traceback."""
    if not isinstance(error, (NameError, AttributeError, ImportError)):
        return ""
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            sys.__excepthook__(type(error), error, error.__traceback__)
    except Exception:  # such as an object of the script whose __dir__ raises: there is no hint
        return ""
    found = _HINT.findall(heard.getvalue())
    return str(found[-1]) if found else ""


def _hinted(text: str, error: BaseException) -> str:
    """The text with Python's suggestion behind the error's message, unless it is there already."""
    hint, said = hint_of(error), f"{type(error).__qualname__}: {error}"
    before, at, after = text.rpartition(said)
    return text if not hint or not at or after.startswith(hint) else f"{before}{said}{hint}{after}"


def stack_of(frame: FrameType) -> str:
    """A thread's stack: the script's frames and their calls, without Paceline's frames at both ends."""
    summary = list(traceback.extract_stack(frame))
    if any(not _is_hidden(entry.filename) for entry in summary):
        while _is_hidden(summary[0].filename):
            summary.pop(0)
        while _is_hidden(summary[-1].filename):
            summary.pop()
    return "".join(traceback.format_list(summary)).rstrip()


def _trim(error: traceback.TracebackException) -> None:
    kept = [entry for entry in error.stack if not _is_hidden(entry.filename)]
    error.stack[:] = kept
    for other in (error.__cause__, error.__context__):
        if other is not None:
            _trim(other)
    for part in error.exceptions or ():
        _trim(part)


def _is_hidden(filename: str) -> bool:
    return filename in _RUNNERS or filename.startswith(_OURS)


def _is_consequence(error: BaseException) -> bool:
    """Whether a collective failed, most likely because another worker is gone: that worker's failure is the cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, (PeerLostError, PeerRaisedError)):
            return True
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    # In a script with its own process group, torch raises the errors: about a lost peer, or about the script's own
    # call (a wrong number of tensors, a wrong dtype). Only an error about a lost peer is a consequence.
    in_torch = f"{os.sep}torch{os.sep}distributed{os.sep}" in innermost(error.__traceback__)
    return isinstance(error, RuntimeError) and in_torch and says_lost(str(error))
