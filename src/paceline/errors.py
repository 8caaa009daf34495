"""Every error that Paceline raises on purpose.

    PacelineError
    ├── UsageError         what was asked cannot be done: an option, a path, a number
    ├── RecordError        the record's folder cannot be written or read
    │   ├── NoRecordError    there is no record of that name
    │   └── NotRegularError  something in a record is a link, a FIFO, a device: not opened
    ├── TraceError         a file is no trace, or not a whole one
    ├── LaunchError        a worker could not be started
    ├── ScriptError        the script does something whose numbers cannot be kept
    │   ├── NotSplitError  a call cannot be computed in slices, or nothing was
    │   └── PartedError    the workers no longer run the same lines on the same numbers
    ├── DataError          a record cannot be read, or a sample cannot be made of it
    ├── PeerLostError      a collective failed because another worker is gone
    └── PeerRaisedError    an exception that this worker raises too was raised by another worker's rows

Each says what was asked and what was found in its message, and what to type in its advice. Nobody who meets
one needs a traceback to understand it.
"""

from __future__ import annotations


class PacelineError(Exception):
    """The root. `advice` is the last line that a person reads: what to type."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message


class UsageError(PacelineError):
    """What was asked cannot be done: an option, a path, a number."""


class RecordError(PacelineError):
    """The record's folder cannot be written or read."""


class NoRecordError(RecordError):
    """There is no record of that name, or at that place."""


class NotRegularError(RecordError):
    """Something in a record is a link, a FIFO, a socket, a device, or a folder in the place of a file: not opened."""


class TraceError(PacelineError):
    """A file is no trace, or not a whole one."""


class LaunchError(PacelineError):
    """A worker could not be started."""


class ScriptError(PacelineError):
    """The script does something whose numbers cannot be kept."""


class NotSplitError(ScriptError):
    """A call cannot be computed in slices, or nothing was: N workers would do the same work N times."""


class PartedError(ScriptError):
    """The workers no longer run the same lines on the same numbers."""


class DataError(PacelineError):
    """A record cannot be read, or a sample cannot be made of it."""


class PeerLostError(PacelineError):
    """A collective failed because another worker is gone: a consequence, never the cause of a failed run."""


class PeerRaisedError(PacelineError):
    """The cause of an exception that another worker's rows raised, and that every worker raises for that."""
