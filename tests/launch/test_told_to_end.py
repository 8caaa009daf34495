"""A run that is told to end while its workers leave, to start again with more of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from paceline.launch.interrupts import Signals
from paceline.launch.watch import Watch
from paceline.settings import JOINED, PREEMPTED, RunSettings, SaveSettings


@pytest.mark.parametrize(
    ("interrupted", "left_with"), [(None, JOINED), (signal.SIGTERM, PREEMPTED), (signal.SIGINT, None)]
)
def test_it_ends_and_does_not_start_again(tmp_path: Path, interrupted: int | None, left_with: int | None) -> None:
    run = RunSettings(script="train.py", workers=0, elastic=1, most=2, saving=SaveSettings(folder=str(tmp_path)))
    with Signals() as signals, Watch(run, hosts=[], signals=signals, record=tmp_path, on_event=print) as watch:
        watch._codes = {0: JOINED, 1: JOINED}
        watch.interrupted = interrupted
        assert watch.left_with == left_with
