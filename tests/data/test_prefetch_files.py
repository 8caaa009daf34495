"""Threads read files ahead where reading waits, and only there."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline.data as pd
from paceline.data.formats.registry import READERS
from paceline.data.stages import interleave


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.txt" for number in range(4)]
    for path in paths:
        path.touch()
    return paths


def threads_after(files: list[Path], monkeypatch: pytest.MonkeyPatch, seconds: float) -> int:
    """How many threads read, after a while, what takes so long a chunk."""

    def read(path: Any, start: int, *_: Any) -> Iterator[list[int]]:
        for number in range(start, 20):
            if seconds:
                time.sleep(seconds)
            yield [number]

    monkeypatch.setitem(READERS, "lines", read)
    before = set(threading.enumerate())  # an earlier pipeline's threads may still be ending
    pipeline = pd.files(files).records()
    found = list(itertools.islice(pipeline, 60))
    reading = sum(thread.name.startswith("paceline-read") for thread in set(threading.enumerate()) - before)
    assert len(found) == 60
    pipeline.close()
    return reading


def test_reading_that_waits_is_done_in_threads(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_after(files, monkeypatch, seconds=0.003) > 0


def test_reading_that_is_not_let_run_is_not(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the clock goes on while nothing is done here: threads would make that worse."""
    clock = itertools.count()
    monkeypatch.setattr(interleave, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(interleave, "thread_time", lambda: 0.0)
    monkeypatch.setattr(interleave, "_waits", lambda: 0)
    assert threads_after(files, monkeypatch, seconds=0) == 0
