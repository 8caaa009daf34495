"""What a worker tells whoever asks what it is doing."""

from __future__ import annotations

import time

from paceline.comm.pulse import Pulse


def test_a_worker_that_waits_says_for_what_and_since_when() -> None:
    pulse, before = Pulse(), time.monotonic()
    pulse.enter("gradients")
    assert pulse.waiting == "gradients"
    assert before <= pulse.waiting_since <= time.monotonic()
    pulse.leave()
    assert pulse.waiting == ""


def test_the_worker_that_is_missed_has_entered_fewer_collectives() -> None:
    pulse = Pulse()
    for _ in range(3):
        pulse.enter("a")
        pulse.leave()
    assert pulse.collectives == 3


def test_notices_go_to_the_launcher() -> None:
    heard: list[str] = []
    Pulse(lambda text, mod: heard.append((text, mod))).notice("look here", mod="batch")
    assert heard == [("look here", "batch")]


def test_without_a_launcher_notices_go_nowhere() -> None:
    Pulse().notice("nobody listens")


def test_a_new_worker_has_done_nothing() -> None:
    pulse = Pulse()
    assert (pulse.step, pulse.seam, pulse.waiting, pulse.collectives, pulse.latest) == (0, "start", "", 0, None)


def test_only_a_long_check_is_told(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("paceline.comm.pulse.time.monotonic", lambda: now[0])
    pulse = Pulse()
    with pulse.checking("whether it holds"):
        assert pulse.long_check == ""
        now[0] += 3.0
        assert pulse.long_check == "whether it holds"
    assert pulse.long_check == ""
