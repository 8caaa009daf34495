"""What a worker's own processes (a DataLoader's) say when the worker goes: nothing, since the launcher says it."""

from __future__ import annotations

import sys
from multiprocessing import resource_sharer, util
from types import TracebackType


def hush() -> None:
    """Called once in a worker, before its script. A loader process hands its batches over through a thread of
    multiprocessing's, which prints a traceback where the worker is gone in the middle of that. Whoever reads the
    terminal then has just been told why, and would look for a second reason."""
    util.register_after_fork(hush, _in_the_child)


def _in_the_child(_: object) -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        serving = trace is not None and trace.tb_frame.f_globals.get("__name__") == resource_sharer.__name__
        if not (serving and isinstance(error, (EOFError, OSError))):
            before(kind, error, trace)

    sys.excepthook = hook
