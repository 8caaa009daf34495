"""Every error that Paceline raises on purpose.

    PacelineError
    ├── UsageError         an option, a path or a number cannot be used as given
    ├── RecordError        the record's folder cannot be written or read
    │   ├── NoRecordError    there is no record of that name
    │   └── NotRegularError  an entry of a record is a link, a FIFO or a device, and is not opened
    ├── TraceError         a file is not a trace, or an incomplete one
    ├── LaunchError        a worker could not be started
    ├── ScriptError        N workers cannot compute the same numbers as plain Python for this script
    │   ├── NotSplitError  a call cannot be computed in slices, or no call was
    │   └── PartedError    the workers no longer run the same lines on the same numbers
    ├── DataError          a data record cannot be read, or cannot be decoded into a sample
    ├── CheckpointError    a checkpoint cannot be written, read, or put into this model
    ├── PeerLostError      a collective failed because another worker is gone
    └── PeerRaisedError    another worker's rows raised an exception, which every worker raises too

`message` says what is wrong and what was found; `advice` says what to type. A user understands each error without a
traceback.
"""

from __future__ import annotations


class PacelineError(Exception):
    """The root of all errors. `advice` is the last line of the report: what to type."""

    def __init__(self, message: str, *, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n{self.advice}" if self.advice else self.message


class UsageError(PacelineError):
    """An option, a path or a number cannot be used as given."""


class RecordError(PacelineError):
    """The record's folder cannot be written or read."""


class NoRecordError(RecordError):
    """There is no record of that name, or at that place."""


class NotRegularError(RecordError):
    """An entry of a record is a link, a FIFO, a socket, a device, or a folder instead of a file. It is not opened."""


class TraceError(PacelineError):
    """A file is not a trace, or an incomplete one."""


class LaunchError(PacelineError):
    """A worker could not be started."""


class ScriptError(PacelineError):
    """N workers cannot compute the same numbers as plain Python for this script."""


class NotSplitError(ScriptError):
    """A call cannot be computed in slices, or no call was: N workers would do the same work N times."""


class PartedError(ScriptError):
    """The workers no longer run the same lines on the same numbers."""


class DataError(PacelineError):
    """A data record cannot be read, or cannot be decoded into a sample."""


class CheckpointError(PacelineError):
    """A checkpoint cannot be written or read, or does not fit the objects that it is loaded into."""


class PeerLostError(PacelineError):
    """A collective failed because another worker is gone: a consequence, never the cause, of a failed run."""


class PeerRaisedError(PacelineError):
    """The `__cause__` of an exception that another worker's rows raised: every worker raises the same exception."""
