"""Real files for Paceline's own writes on ranks other than 0, whose writes otherwise go to a scratch folder.

For files that belong to all workers together, such as the shards of a checkpoint. Not for anything that a script does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_here = threading.local()  # of a thread: a background write must not change what the script's thread sees


@contextmanager
def real_files() -> Iterator[None]:
    """Inside it, this thread's calls of open, os and shutil reach the real files on every rank."""
    before = are_real()
    _here.real = True
    try:
        yield
    finally:
        _here.real = before


def are_real() -> bool:
    """Whether this thread is inside `real_files`."""
    return getattr(_here, "real", False)
