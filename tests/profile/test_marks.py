"""Marks are laid and lifted, and leave torch and the stopwatch as they were."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from paceline.comm.stopwatch import Stopwatch
from paceline.profile.marks import READS, Marks


def test_what_was_patched_is_put_back():
    watch = Stopwatch()
    before = {name: getattr(torch.Tensor, name) for name in READS}
    own = set(vars(torch.Tensor))
    marks = Marks(watch)
    watch.enter("backward")  # before the marks: leaves without one
    marks.lay()
    assert torch.ones(1).item() == 1.0
    watch.leave()
    watch.enter("forward")  # left open
    marks.lift()
    watch.leave()
    assert watch.phase == "other"
    assert {name: getattr(torch.Tensor, name) for name in READS} == before
    assert set(vars(torch.Tensor)) == own
    assert not {"enter", "leave"} & set(vars(watch))


def test_phases_and_lines_are_marked():
    watch = Stopwatch()
    marks = Marks(watch)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        marks.lay()
        watch.enter("backward")
        watch.enter("communication")
        watch.leave()
        watch.leave()
        bool(torch.ones(1))
        with watch.checking():
            watch.enter("data")
            watch.leave()
        marks.lift()
    names = {event.key for event in profiler.key_averages()}
    assert {"paceline.backward", "paceline.communication", "paceline's check"} <= names
    assert "paceline.data" not in names, "inside a check"
    assert any(name.startswith("paceline.line#") and name.endswith("#bool") for name in names)
    assert any("test_marks.py" in name for name in names)
