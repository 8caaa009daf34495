"""Silences the child processes of a worker (DataLoader processes) when the worker has ended."""

from __future__ import annotations

import sys
from multiprocessing import resource_sharer, util
from types import TracebackType


def hush() -> None:
    """Called once in a worker, before its script. A loader process hands its batches over through a thread of
    multiprocessing. That thread prints a traceback if the worker ends in the middle of the transfer. The launcher has
    already reported why the worker ended, and a second traceback would look like a second failure."""
    util.register_after_fork(hush, _in_the_child)


def _in_the_child(_: object) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        serving = trace is not None and trace.tb_frame.f_globals.get("__name__") == resource_sharer.__name__
        if not (serving and isinstance(error, (EOFError, OSError))):
            before(kind, error, trace)

    sys.excepthook = hook
