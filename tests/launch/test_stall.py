"""Who waits, who is missing, and where everybody stands."""

from __future__ import annotations

import pytest
from launched import Play

from paceline.launch import watch
from paceline.launch.stall import Inspector, Standing, blame, report
from paceline.launch.wire import Beat


def beat(
    *, step: int = 3, seam: str = "before_forward", waiting: str = "", waited: float = 0.0, collectives: int = 7
) -> Beat:
    return Beat(
        step=step, seam=seam, waiting=waiting, waited=waited, collectives=collectives, view="batch", latest=None
    )


def test_a_worker_in_no_collective_is_missing() -> None:
    standings = [Standing(0, beat(waiting="all_reduce", waited=4.0, collectives=8), 10.0), Standing(1, beat(), 10.0)]
    stalled = Inspector(5.0, None).look(standings, 12.0)
    assert stalled is not None
    assert ([s.rank for s in stalled.waiting], [s.rank for s in stalled.missing]) == ([0], [1])
    assert stalled.longest == 6.0
    assert blame(stalled) == 1
    text = report(stalled, standings, {1: '  File "train.py", line 3'}, "here", 12.0)
    assert "worker 0 on here: waits in all_reduce for 6.0 s; step 3, after seam before_forward" in text
    assert "Missing: worker 1." in text
    assert "worker 1 on here: in no collective; step 3" in text
    assert 'worker 1:\n  File "train.py", line 3' in text
    assert "worker 0:\n  did not answer" in text


def test_nobody_is_warned_of_before_time_or_where_all_compute() -> None:
    inspector = Inspector(5.0, None)
    assert inspector.look([Standing(0, beat(waiting="x", waited=4.0), 10.0), Standing(1, beat(), 10.0)], 10.5) is None
    assert inspector.look([Standing(0, beat(), 10.0), Standing(1, beat(), 10.0)], 1000.0) is None
    assert inspector.look([Standing(0), Standing(1)], 1000.0) is None


def test_a_stall_is_told_once_and_the_next_one_again() -> None:
    inspector = Inspector(5.0, None)
    stuck = [Standing(0, beat(waiting="x", waited=9.0), 10.0), Standing(1, beat(), 10.0)]
    going = [Standing(0, beat(), 10.0), Standing(1, beat(), 10.0)]
    assert inspector.look(stuck, 10.0)
    assert not inspector.look(stuck, 20.0)
    assert not inspector.look(going, 30.0)
    assert inspector.look(stuck, 40.0)


def test_a_stall_right_after_another_is_told_though_nobody_looked_in_between() -> None:
    def stuck(collectives: int) -> list[Standing]:
        return [Standing(0, beat(waiting="x", waited=9.0, collectives=collectives), 10.0), Standing(1, beat(), 10.0)]

    inspector = Inspector(5.0, None)
    assert inspector.look(stuck(8), 10.0)
    assert not inspector.look(stuck(8), 20.0)
    joined = [stuck(8)[0], Standing(1, beat(waiting="y", waited=6.0), 10.0)]
    assert not inspector.look(joined, 25.0), "another worker that waits, too, makes no other stall"
    assert inspector.look(stuck(9), 30.0)
    assert not inspector.look(stuck(9), 40.0)


def test_workers_that_wait_in_different_collectives_parted_ways() -> None:
    standings = [
        Standing(0, beat(waiting="gather", waited=9.0, collectives=8), 10.0),
        Standing(1, beat(waiting="all_reduce", waited=8.0, collectives=6), 10.0),
    ]
    stalled = Inspector(5.0, None).look(standings, 10.0)
    assert stalled is not None
    assert "parted ways" in report(stalled, standings, {}, "here", 10.0)
    assert blame(stalled) == 1


def test_a_worker_that_has_ended_or_fell_silent_is_missing() -> None:
    standings = [
        Standing(0, beat(waiting="gather", waited=1.0), 20.0),
        Standing(1, beat(step=5), 10.0, ended=True),
        Standing(2, beat(), 10.0),
        Standing(3),
    ]
    stalled = Inspector(5.0, None).look(standings, 30.0)
    assert stalled is not None
    text = report(stalled, standings, {}, "here", 30.0)
    assert "worker 1 on here: its script has ended, after step 5" in text
    assert "no heartbeat for 20 s" in text
    assert "worker 3 on here: has not been heard of yet" in text


def test_zero_switches_the_warning_off_and_abort_has_its_own_limit() -> None:
    stuck = [Standing(0, beat(waiting="x", waited=9.0), 10.0), Standing(1, beat(), 10.0)]
    assert Inspector(0, None).look(stuck, 10.0) is None
    assert Inspector(60.0, 5.0).look(stuck, 10.0) is not None
    assert Inspector(60.0, 5.0).gives_up(stuck, 10.0) is not None
    assert Inspector(60.0, 50.0).gives_up(stuck, 10.0) is None
    assert Inspector(60.0, None).gives_up(stuck, 1e9) is None


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks are waited for, however long a busy machine takes to tell them."""
    monkeypatch.setattr(watch, "_ANSWERS", 60.0)


TRAINING = """
import os, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
release = os.path.join(os.path.dirname(os.path.abspath(__file__)), "release")
for step in range(8):
    if step == 5 and os.environ["RANK"] == "1":
        while not os.path.exists(release):  # the endless loop
            time.sleep(0.01)
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("answers")
def test_a_worker_in_an_endless_loop_is_found_with_its_line(play: Play) -> None:
    launched = play(TRAINING, stall_warning=1.0, stall_abort=8.0)
    # A worker that is slow to start may stall the others too, on a busy machine; at step 5 nobody but the loop.
    (text,) = [text for text in launched.stalls if "; step 5," in text]
    assert "Missing: worker 1." in text
    assert "waits in" in text
    assert "step 5" in text
    there = text[text.index("\nworker 1:") :]
    assert "the endless loop" in there or "time.sleep(0.01)" in there
    assert f'{launched.record.parent / "train.py"}", line ' in there
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, 1)
    assert "--stall-abort" in outcome.message


def test_a_stall_that_resolves_is_only_a_warning(play: Play) -> None:
    def release(launched, event) -> None:  # type: ignore[no-untyped-def]
        if any("Missing: worker 1." in text for text in launched.stalls):
            (launched.record.parent / "release").touch()

    launched = play(TRAINING, stall_warning=0.5, on_event=release)
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.outcome.steps == 8
    assert launched.stalls
    assert {rank for event in launched.progress for rank in event.steps} == {0, 1}
