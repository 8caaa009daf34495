"""What the tests of this room share: a look at what a test leaves behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no process of its own and no thread of a pipeline runs."""
    before = _children()
    yield
    deadline, collected = time.monotonic() + 60, False
    while time.monotonic() < deadline:
        left = _children() - before, [t.name for t in threading.enumerate() if t.name.startswith("paceline-")]
        if not any(left):
            return
        if collected:
            time.sleep(0.01)
        else:  # a collection takes 20 ms, and most tests leave nothing that needs one
            gc.collect()
            collected = True
    raise AssertionError(f"left behind: processes {left[0]}, threads {left[1]}")


def _children() -> set[int]:
    """That run: one that has ended and was not waited for is no process any more."""
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        try:
            for pid in map(int, (task / "children").read_text().split()):
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.add(pid)
        except OSError:
            continue  # ended just now
    return found
