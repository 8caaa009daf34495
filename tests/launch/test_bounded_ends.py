"""The launcher ends when it is told to, also where the process that forks the workers does not help."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.errors import LaunchError
from paceline.launch import Event, Output, Stall, Zygote, launch, watch
from paceline.launch.processes import below, state_of
from paceline.launch.zygote.handle import Patience
from paceline.record import Outcome
from paceline.settings import RunSettings

# A worker with a child in a session of its own, which ignores SIGTERM.
SCRIPT = """
import subprocess, sys, time
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("here", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def own_zygote() -> Iterator[Zygote]:
    """One that a test may stop and kill."""
    with Zygote.start() as zygote:
        yield zygote


def play(
    zygote: Zygote, folder: Path, on_event: Callable[[Event], None], workers: int = 1, **settings: object
) -> Outcome:
    """One worker unless a test needs two: for a second one, each test's own zygote imports torch._dynamo."""
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT))
    run = RunSettings(script=str(folder / "train.py"), workers=workers, **settings)  # type: ignore[arg-type]
    return launch(run, zygote=zygote, record=folder / "record", on_event=on_event)


class Stop:
    """Stops the zygote when the first worker is there, then sends this process signals, one after the other."""

    def __init__(self, zygote: Zygote, *numbers: int) -> None:
        self._zygote, self._numbers = zygote, numbers
        self.told: list[Event] = []
        self.below: list[int] = []

    def __call__(self, event: Event) -> None:
        self.told.append(event)
        if isinstance(event, Output) and not self.below:
            self.below = below(self._zygote.pid)
            os.kill(self._zygote.pid, signal.SIGSTOP)
            for number in self._numbers:
                os.kill(os.getpid(), number)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_frozen_zygote_is_woken_to_end_the_run_and_itself(own_zygote: Zygote, tmp_path: Path, number: int) -> None:
    stop = Stop(own_zygote, number)
    outcome = play(own_zygote, tmp_path, stop, workers=2)
    assert (outcome.exit_code, outcome.interrupted) == (128 + number, True)
    assert stop.below
    assert not [pid for pid in stop.below if state_of(pid)]
    os.kill(own_zygote.pid, signal.SIGSTOP)  # once more, when all is over
    deadline = time.monotonic() + 60
    while state_of(own_zygote.pid) != "T":
        assert time.monotonic() < deadline
        time.sleep(0.001)
    own_zygote.close()
    assert not state_of(own_zygote.pid)


@pytest.mark.parametrize(
    "numbers", [pytest.param((signal.SIGTERM,), marks=pytest.mark.slow), (signal.SIGINT, signal.SIGINT)]
)
def test_a_zygote_that_never_answers_is_done_without(
    own_zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbers: tuple[int, ...]
) -> None:
    monkeypatch.setattr(Zygote, "wake", lambda self: None)
    for name in ("_GRACE_INTERRUPTED", "_SWEEPING", "_SWEEPING_INSISTED"):
        monkeypatch.setattr(watch, name, 0.3)
    stop = Stop(own_zygote, *numbers)
    outcome = play(own_zygote, tmp_path, stop)
    assert (outcome.exit_code, outcome.interrupted) == (128 + numbers[0], True)
    assert stop.below
    assert not [pid for pid in stop.below if state_of(pid)]
    assert not state_of(own_zygote.pid)


def test_a_frozen_zygote_is_told_of_and_given_up(
    own_zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Patience.look
    monkeypatch.setattr(Patience, "look", lambda self, now: look(self, 100 * now))  # its clock runs 100 times as fast
    stop = Stop(own_zygote)
    with pytest.raises(LaunchError, match=r"is frozen .*--stall-abort"):
        play(own_zygote, tmp_path, stop, stall_warning=40.0, stall_abort=80.0)
    assert any(f"kill -CONT {own_zygote.pid}" in event.text for event in stop.told if isinstance(event, Stall))
    assert not [pid for pid in stop.below if state_of(pid)]


KILLED = """
import os, signal
from paceline.launch import Zygote
with Zygote.start() as zygote:
    zygote.receive()
    print(zygote.pid, flush=True)
    os.kill(zygote.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_zygote_ends_with_its_parent() -> None:
    """As when an agent is killed while it ends its workers."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, stdout=subprocess.PIPE, text=True)
    by = time.monotonic() + 60
    while state_of(int(done.stdout)):
        assert time.monotonic() < by
        time.sleep(0.05)
