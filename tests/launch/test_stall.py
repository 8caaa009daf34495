"""Who waits, who is missing, and where everybody stands."""

from __future__ import annotations

import msgspec
import pytest
from launched import Launched, Play

from paceline.launch import watch
from paceline.launch.failures import stall
from paceline.launch.failures.stall import Inspector, WorkerStanding, blame, report, why
from paceline.launch.messages import Beat
from paceline.record import read_run


def beat(
    *, step: int = 3, seam: str = "before_forward", waiting: str = "", waited: float = 0.0, collectives: int = 7
) -> Beat:
    return Beat(
        step=step, seam=seam, waiting=waiting, waited=waited, collectives=collectives, view="batch", latest=None
    )


def test_a_worker_in_no_collective_is_missing() -> None:
    standings = [
        WorkerStanding(0, beat(waiting="all_reduce", waited=4.0, collectives=8), 10.0),
        WorkerStanding(1, beat(), 10.0),
    ]
    stalled = Inspector(5.0, None).look(standings, 12.0)
    assert stalled is not None
    assert ([s.rank for s in stalled.waiting], [s.rank for s in stalled.missing]) == ([0], [1])
    assert stalled.longest == 6.0
    assert blame(stalled, 12.0) == 1
    text = report(stalled, standings, {1: '  File "train.py", line 3'}, 12.0)
    assert "worker 0 on localhost: waits in all_reduce for 6.0 s; step 3, after seam before_forward" in text
    assert "Missing: worker 1." in text
    assert "worker 1 on localhost: in no collective; step 3" in text
    assert 'worker 1:\n  File "train.py", line 3' in text
    assert "worker 0:\n  did not answer" in text


def test_nobody_is_warned_of_before_time_or_where_all_compute() -> None:
    inspector = Inspector(5.0, None)
    assert (
        inspector.look([WorkerStanding(0, beat(waiting="x", waited=4.0), 10.0), WorkerStanding(1, beat(), 10.0)], 10.5)
        is None
    )
    computing = [WorkerStanding(rank, beat(), 1000.0, moved=999.0) for rank in range(2)]
    assert inspector.look(computing, 1000.0) is None
    assert inspector.look([WorkerStanding(0), WorkerStanding(1)], 1000.0) is None, "they are not started yet"


def test_nothing_is_a_stall_while_a_person_is_at_a_prompt() -> None:
    inspector = Inspector(5.0, 8.0)
    waits = WorkerStanding(1, beat(waiting="all_reduce", waited=9.0), 10.0)
    asks = WorkerStanding(0, msgspec.structs.replace(beat(), asking=True), 10.0)
    assert inspector.look([asks, waits], 10.0) is None
    assert inspector.gives_up([asks, waits], 10.0) is None
    # The person has gone on: the others have waited since then.
    goes_on = WorkerStanding(0, beat(), 10.5)
    assert inspector.look([goes_on, waits], 10.5) is None
    assert inspector.gives_up([goes_on, waits], 10.5) is None
    goes_on.heard = waits.heard = 15.0
    stalled = inspector.look([goes_on, waits], 15.5)
    assert stalled is not None
    assert stalled.longest == 5.5


def test_a_run_that_is_stalled_ends_after_half_an_hour_and_later_before_its_first_step() -> None:
    def gives_up(abort: float | None, step: int, waited: float, silent: float = 0.0) -> bool:
        standings = [
            WorkerStanding(0, beat(step=step, waiting="all_reduce", waited=waited), 5000.0),
            WorkerStanding(1, beat(step=step), 5000.0 - silent),
        ]
        return Inspector(60.0, abort).gives_up(standings, 5000.0) is not None

    assert [gives_up(None, 1, waited) for waited in (1799.0, 1800.0)] == [False, True]
    assert [gives_up(None, 0, waited) for waited in (7199.0, 7200.0)] == [False, True], "it compiles, or it hangs"
    assert gives_up(None, 0, 4000.0, silent=60.0), "… or it does not: it is frozen"
    assert gives_up(10.0, 0, 10.0), "a limit that was typed holds from the start"
    assert not gives_up(0.0, 1, 4000.0)


def test_time_in_which_the_launcher_was_stopped_is_no_stall() -> None:
    inspector = Inspector(60.0, None)
    standings = [WorkerStanding(0, beat(waiting="x", waited=4000.0), 5000.0), WorkerStanding(1, beat(), 10.0)]
    inspector.excuse(5000.0)
    assert inspector.gives_up(standings, 5001.0) is None
    standings[0].heard = 6800.0
    assert inspector.gives_up(standings, 6800.0) is not None


def test_a_prompt_is_no_long_silence_either() -> None:
    inspector = Inspector(5.0, None)
    asks = [WorkerStanding(rank, msgspec.structs.replace(beat(), asking=True), 99.0, moved=1.0) for rank in range(2)]
    assert inspector.look(asks, 100.0) is None
    assert inspector.look([WorkerStanding(0, beat(), 100.5, moved=1.0)], 101.0) is None


def test_a_stall_is_told_once_and_the_next_one_again() -> None:
    inspector = Inspector(5.0, None)
    stuck = [WorkerStanding(0, beat(waiting="x", waited=9.0), 10.0), WorkerStanding(1, beat(), 10.0)]
    going = [WorkerStanding(0, beat(), 10.0, moved=10.0), WorkerStanding(1, beat(), 10.0, moved=10.0)]
    assert inspector.look(stuck, 10.0)
    assert not inspector.look(stuck, 11.0)
    assert not inspector.look(going, 12.0)
    assert inspector.look(stuck, 13.0)


def test_a_stall_right_after_another_is_told_though_nobody_looked_in_between() -> None:
    def stuck(collectives: int) -> list[WorkerStanding]:
        return [
            WorkerStanding(0, beat(waiting="x", waited=9.0, collectives=collectives), 10.0),
            WorkerStanding(1, beat(), 10.0),
        ]

    inspector = Inspector(5.0, None)
    assert inspector.look(stuck(8), 10.0)
    assert not inspector.look(stuck(8), 11.0)
    joined = [stuck(8)[0], WorkerStanding(1, beat(waiting="y", waited=6.0), 10.0)]
    assert not inspector.look(joined, 12.0), "another worker that waits, too, makes no other stall"
    assert inspector.look(stuck(9), 13.0)
    assert not inspector.look(stuck(9), 14.0)


def test_workers_that_wait_in_different_collectives_parted_ways() -> None:
    standings = [
        WorkerStanding(0, beat(waiting="gather", waited=9.0, collectives=8), 10.0),
        WorkerStanding(1, beat(waiting="all_reduce", waited=8.0, collectives=6), 10.0),
    ]
    stalled = Inspector(5.0, None).look(standings, 10.0)
    assert stalled is not None
    assert "parted ways" in report(stalled, standings, {}, 10.0)
    assert blame(stalled, 10.0) == 1


def test_a_worker_that_has_ended_or_fell_silent_is_missing() -> None:
    standings = [
        WorkerStanding(0, beat(waiting="gather", waited=8.0), 28.0),
        WorkerStanding(1, beat(step=5), 10.0, ended=True),
        WorkerStanding(2, beat(), 10.0),
        WorkerStanding(3, born=28.0),
        WorkerStanding(4, born=10.0),
    ]
    stalled = Inspector(5.0, None).look(standings, 30.0)
    assert stalled is not None
    text = report(stalled, standings, {}, 30.0)
    assert "worker 1 on localhost: its script has ended, after step 5" in text
    assert "no heartbeat for 20 s" in text
    assert "worker 3 on localhost: has not been heard of yet" in text
    assert "not heard of since it was started 20 s ago" in text


def test_zero_switches_the_warning_off_and_abort_has_its_own_limit() -> None:
    stuck = [WorkerStanding(0, beat(waiting="x", waited=9.0), 10.0), WorkerStanding(1, beat(), 10.0)]
    assert Inspector(0, None).look(stuck, 10.0) is None
    assert Inspector(60.0, 5.0).look(stuck, 10.0) is not None
    assert Inspector(60.0, 5.0).gives_up(stuck, 10.0) is not None
    assert Inspector(60.0, 50.0).gives_up(stuck, 10.0) is None
    assert Inspector(60.0, 0.0).gives_up(stuck, 1e9) is None


def test_a_frozen_worker_is_called_frozen_also_where_it_last_said_that_it_waits() -> None:
    """It told of the collective, and was stopped in it: no parting of ways."""
    waits = beat(waiting="gather", waited=1.0, collectives=8)
    standings = [
        WorkerStanding(0, beat(waiting="gather", waited=6.0, collectives=8), 10.0, pid=70),
        WorkerStanding(1, waits, 6.0, pid=71, state="T"),
    ]
    stalled = Inspector(5.0, None).look(standings, 10.0)
    assert stalled is not None
    text = report(stalled, standings, {}, 10.0)
    assert "Missing: worker 1." in text
    assert "worker 1 on localhost: is frozen (stopped by a signal; no heartbeat for 4 s); at its last heartbeat" in text
    assert "kill -CONT 71" in text
    assert "parted ways" not in text
    assert blame(stalled, 10.0) == 1
    assert why(stalled, 1, 10.0).startswith("is frozen")


@pytest.mark.parametrize(
    ("state", "said"),
    [("T", "is frozen"), ("D", "blocked in the kernel"), ("R", "its Python does not answer"), ("", "does not answer")],
)
def test_a_lone_worker_that_falls_silent_is_told_of_and_given_up(state: str, said: str) -> None:
    """Nobody waits for it: there is no other, or it was stopped before all had met."""
    for silent in (WorkerStanding(0, beat(), 10.0, state=state, moved=10.0), WorkerStanding(0, born=10.0, state=state)):
        inspector = Inspector(5.0, 20.0)
        assert inspector.look([silent], 12.0) is None
        stalled = inspector.look([silent], 16.0)
        assert stalled is not None
        assert said in report(stalled, [silent], {}, 16.0)
        assert inspector.gives_up([silent], 29.0) is None
        over = inspector.gives_up([silent], 30.0)
        assert over is not None
        assert said in why(over, blame(over, 30.0), 30.0)


def test_workers_that_all_wait_in_the_same_collective_did_not_part() -> None:
    standings = [WorkerStanding(rank, beat(waiting="gather", waited=9.0), 10.0) for rank in range(2)]
    stalled = Inspector(5.0, None).look(standings, 10.0)
    assert stalled is not None
    assert "all wait in the same collective" in report(stalled, standings, {}, 10.0)


def test_workers_that_make_no_step_while_nobody_waits_are_told_of_once_and_never_given_up() -> None:
    inspector = Inspector(60.0, 60.0)
    standings = [WorkerStanding(0), WorkerStanding(1)]

    def hear(now: float, passed: int) -> None:
        for standing in standings:
            standing.hear(msgspec.structs.replace(beat(), passed=passed), now)

    hear(10.0, passed=1)
    hear(60.0, passed=2)  # an evaluation: no step, but a model's calls
    hear(100.0, passed=2)
    assert inspector.look(standings, 100.0) is None
    hear(121.0, passed=2)
    stalled = inspector.look(standings, 121.0)
    assert stalled is not None
    text = report(stalled, standings, {0: "  here", 1: "  there"}, 121.0)
    assert text.startswith("No step for 61 s, and no worker waits for another.")
    assert "  there" in text
    hear(1000.0, passed=2)
    assert inspector.look(standings, 1000.0) is None
    assert inspector.gives_up(standings, 1000.0) is None


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stacks are waited for, however long a busy machine takes to tell them."""
    monkeypatch.setattr(watch, "_ANSWERS", 60.0)


TRAINING = """
import os, time, torch
from paceline.settings import of_this_process
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
release = os.path.join(os.path.dirname(os.path.abspath(__file__)), "release")
for step in range(8):
    if step == 5 and of_this_process().rank == 1:
        while not os.path.exists(release):  # the endless loop
            time.sleep(0.01)
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def test_a_worker_that_hangs_before_the_first_step_ends_the_run(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it answers, and no limit was typed."""
    monkeypatch.setattr(stall, "AT_START", 6.0 / stall.ABORT)
    monkeypatch.setattr(watch, "_STALE", 1.0)
    launched = play(TRAINING.replace("step == 5", "step == 0"), stall_warning=1.0, limit=60.0)
    assert (launched.outcome.exit_code, launched.outcome.failed_rank) == (1, 1), launched.outcome.message
    assert "kept rank 0 waiting" in launched.outcome.message
    assert "--stall-abort" in launched.outcome.message


def names_the_loop(launched: Launched) -> None:
    # A worker that is slow to start may stall the others too, on a busy machine; at step 5 nobody but the loop.
    text, *_ = [text for text in launched.stalls if "; step 5," in text]
    assert "Missing: worker 1." in text
    assert "waits in" in text
    there = text[text.index("\nworker 1:") :]
    assert "the endless loop" in there or "time.sleep(0.01)" in there
    assert f'{launched.record.parent / "train.py"}", line ' in there


@pytest.mark.slow  # the next one looks at the same report, the last one at --stall-abort
@pytest.mark.usefixtures("answers")
def test_a_worker_in_an_endless_loop_is_found_with_its_line(play: Play) -> None:
    launched = play(TRAINING, stall_warning=1.0, stall_abort=8.0)
    names_the_loop(launched)
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, 1)
    assert "--stall-abort" in outcome.message


@pytest.mark.usefixtures("answers")
@pytest.mark.slow
def test_a_stall_that_resolves_is_only_a_warning_with_the_workers_line(play: Play) -> None:
    def release(launched, event) -> None:  # type: ignore[no-untyped-def]
        if any("; step 5," in text for text in launched.stalls):
            (launched.record.parent / "release").touch()

    launched = play(TRAINING, stall_warning=2.0, on_event=release)
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.outcome.steps == 8
    names_the_loop(launched)


@pytest.mark.slow
def test_a_loop_on_every_worker_is_told_of_with_its_line_and_ends_nothing(play: Play) -> None:
    def release(launched, event) -> None:  # type: ignore[no-untyped-def]
        if launched.stalls:
            (launched.record.parent / "release").touch()

    launched = play(
        """
        import os
        release = os.path.join(os.path.dirname(os.path.abspath(__file__)), "release")
        while not os.path.exists(release):
            pass
        """,
        stall_warning=2.0,
        stall_abort=2.5,
        on_event=release,
    )
    assert launched.outcome.exit_code == 0, launched.outcome.message
    (text,) = launched.stalls
    assert text.startswith("No step for")
    assert text.count(f'{launched.record.parent / "train.py"}", line ') == 2, "a line for each worker"


def test_a_worker_that_is_stopped_is_called_frozen_and_ends_the_run(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no limit was typed; with every stack once more."""
    monkeypatch.setattr(stall, "ABORT", 4.0)
    monkeypatch.setattr(watch, "_STALE", 1.0)
    stopping = TRAINING.replace("while not os.path.exists(release):", "if os.kill(os.getpid(), 19) is None:")
    launched = play(stopping, stall_warning=1.0)
    text, last = [text for text in launched.stalls if "; step 5," in text]
    pid = read_run(launched.record).workers[1].pid
    assert "Missing: worker 1." in text
    assert "worker 1 on" in text
    assert "is frozen (stopped by a signal" in text
    for each in (text, last):
        assert f"kill -CONT {pid}" in each
    assert (launched.outcome.exit_code, launched.outcome.failed_rank) == (1, 1)
    assert "is frozen" in launched.outcome.cause
    assert "--stall-abort" in launched.outcome.message
