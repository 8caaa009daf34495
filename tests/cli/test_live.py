"""The live line on a terminal that the script writes to as well."""

from __future__ import annotations

import io
import re
import sys
from itertools import pairwise

import pytest
from fake_launch import one_step
from rich.console import Console

from paceline.cli.live import LiveLine
from paceline.cli.profile import OF_TORCH
from paceline.launch.events import Checking
from paceline.tables.figures import Figures

OF_ALLOCATOR = (
    b"Memory block of unknown size was allocated before the profiling started, profiler results will not include the "
    b"deallocation event"
)


class Terminal(io.TextIOWrapper):
    """Knows what a person would see."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        self.flush()
        text = re.sub(r"\x1b\[[\d;]*m", "", self.buffer.getvalue().decode())
        shown = [""]
        column = 0
        for piece in re.findall(r"\x1b\[2K|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\x1b[2K":
                shown[-1] = ""
            elif piece == "\r":
                column = 0
            elif piece == "\n":
                shown.append("")
                column = 0
            else:
                line = shown[-1].ljust(column)
                shown[-1] = line[:column] + piece + line[column + len(piece) :]
                column += len(piece)
        return shown


@pytest.fixture
def start(monkeypatch):
    """Starts a live line on a terminal of its own; not before the test, when pytest puts its streams in."""

    def start_it(*, quiet: bool = False) -> tuple[Terminal, LiveLine]:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        console = Console(stderr=True, highlight=False, markup=False, force_terminal=True, width=80)
        return terminal, LiveLine(console, workers=2, quiet=quiet, script_to_stderr=False)

    return start_it


def test_it_stays_below_what_the_script_prints(start):
    terminal, live = start()
    assert terminal.lines() == ["2 workers, no step yet …"]
    live.output("stdout", b"epoch 1\n")
    live.progress({0: one_step(3), 1: one_step(3)})
    live.output("stdout", b"epoch 2\n")
    assert terminal.lines() == [
        "epoch 1",
        "epoch 2",
        "step 3 · 640 samples/s · 100 ms a step · loss 0.3333 · spread 0.0 %",
    ]
    live.close()
    assert terminal.lines() == ["epoch 1", "epoch 2", ""]


def test_a_script_with_a_progress_bar_of_its_own_keeps_it(start):
    terminal, live = start()
    live.output("stderr", b"\r10%")
    live.progress({0: one_step(1), 1: one_step(1)})
    live.output("stderr", b"\r20%")
    assert terminal.lines() == ["20%"]
    live.output("stderr", b"\n")
    assert terminal.lines()[0] == "20%"
    assert terminal.lines()[1].startswith("step 1")


def test_a_notice_does_not_land_in_the_middle_of_a_line(start):
    terminal, live = start()
    live.output("stdout", b"half a line")
    live.say("paceline: look at this")
    live.close()
    assert terminal.lines() == ["half a line", "paceline: look at this", ""]


class LogFile(Terminal):
    def isatty(self) -> bool:
        return False


def test_in_a_log_file_it_keeps_off_a_progress_bar_and_does_not_repeat_itself(monkeypatch):
    log = LogFile()
    monkeypatch.setattr(sys, "stdout", log)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr("paceline.cli.live.PLAIN_EVERY", 0.0)
    console = Console(stderr=True, highlight=False, markup=False, width=80)
    live = LiveLine(console, workers=2, quiet=False, script_to_stderr=False)
    live.output("stderr", b"\r10%")
    live.progress({0: one_step(1), 1: one_step(1)})
    live.progress({0: one_step(1), 1: one_step(1)})
    live.output("stderr", b"\r20%")
    live.close()
    bar, line, *rest = log.lines()
    assert (bar, rest) == ("10%", ["20%", ""])
    assert line.startswith("paceline: step 1")


def test_it_never_wraps(start):
    terminal, live = start()
    live.progress({rank: one_step(10**30) for rank in range(2)})
    assert [len(line) <= 79 for line in terminal.lines()] == [True]


def test_quiet_passes_output_on_and_shows_nothing_else(start):
    terminal, live = start(quiet=True)
    live.progress({0: one_step(1)})
    live.output("stdout", b"epoch 1\n")
    live.close()
    assert terminal.lines() == ["epoch 1", ""]


def test_a_reader_that_went_away_does_not_end_the_training(start, monkeypatch):
    _, live = start()

    def gone(data: bytes) -> int:
        raise BrokenPipeError

    class Gone(Terminal):
        buffer = type("Buffer", (), {"write": staticmethod(gone)})()

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Gone())
    live.output("stdout", b"epoch 1\n")
    live.output("stdout", b"epoch 2\n")


def test_a_series_says_which_trial_of_how_many_and_the_time_left(capfd):
    from paceline.cli.series import Line
    from paceline.cli.terminal import stderr
    from paceline.trials.core.bench import Budget

    line = Line(stderr(), Budget(None), quiet=False)
    line.trials = 3
    line.start("naive", trial=True)
    line.say("naive: 70 %")
    line.start("lamb", trial=True)
    line.say("lamb: 71 %")
    limited = Line(stderr(), Budget(90.0), quiet=False)
    limited.start("baseline", trial=True)
    limited.say("baseline: 640 samples/s")
    out, err = capfd.readouterr()
    first, second, third = err.splitlines()
    assert out == ""
    assert re.fullmatch(r"paceline: trial 1 of 3, at most \S+ \S+ left: naive: 70 %", first)
    assert second.startswith("paceline: trial 2 of 3, at most ")
    assert re.fullmatch(r"paceline: trial 1, at most (90|89\.\d) s left: baseline: 640 samples/s", third)


def test_a_bar_shows_the_time_left():
    from paceline.cli.terminal import progress_bar

    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=100)
    clock = iter(range(0, 10_000, 10))
    bar = progress_bar(console, quiet=False)
    bar.get_time = lambda: float(next(clock))
    task = bar.add_task("trials", total=4)
    bar.update(task, completed=1)
    bar.update(task, completed=2)
    console.print(bar.get_renderable())
    assert " s left" in drawn.getvalue()


@pytest.mark.parametrize(("counted", "told"), [(1, False), (4, False), (5, True)])
def test_the_time_left_is_told_from_steps_that_say_something_about_it(monkeypatch, counted, told):
    """From its first step a run of 29 s had 123 s left."""
    console = Console(file=io.StringIO(), width=120)
    live = LiveLine(console, workers=1, quiet=False, script_to_stderr=False, steps=100)
    found = Figures(steps=counted + 1, counted=counted, step_time=1.23, samples_per_s=10.0)
    monkeypatch.setattr(live._running, "report", lambda steps: None)
    monkeypatch.setattr(live._running, "figures", lambda: found)
    assert ("left" in live._describe(one_step(counted + 1)).plain) is told


def test_lines_without_a_terminal_come_ever_more_rarely(monkeypatch):
    now = 0.0
    monkeypatch.setattr("paceline.cli.live.time.monotonic", lambda: now)
    console = Console(file=io.StringIO(), width=120)
    live = LiveLine(console, workers=1, quiet=False, script_to_stderr=False)
    monkeypatch.setattr(live._running, "figures", lambda: Figures(steps=1, samples_per_s=10.0, step_time=1.0))
    said = []
    for second in range(4 * 3600):
        now = float(second)
        before = len(console.file.getvalue())
        live.progress({0: one_step(second + 1)})
        if len(console.file.getvalue()) > before:
            said.append(second)
    pauses = [after - before for before, after in pairwise(said)]
    assert said[0] == 10
    assert pauses == sorted(pauses)
    assert pauses[-1] == 600
    assert len(said) < 50


def test_output_that_was_filtered_leaves_no_line(start):
    terminal, line = start()
    line.output("stderr", b"loss 1\n")
    line.output("stderr", b"")
    line.say("paceline: traced")
    line.close()
    assert [one for one in terminal.lines() if one] == terminal.lines()[:2] == ["loss 1", "paceline: traced"]


def test_samples_that_cannot_be_counted_are_not_zero(start):
    terminal, line = start()
    step = one_step(1)
    step.samples = 0
    line.progress({0: step, 1: step})
    line.close()
    assert "samples/s" not in terminal.buffer.getvalue().decode()


@pytest.mark.parametrize("rank", [b"", b"[rank1]:"])
def test_the_allocators_warning_goes_with_all_of_its_line(rank):
    said = b"loss 1\n" + rank + b"[W1119 10:43:47.38 CPUAllocator.cpp:245] " + OF_ALLOCATOR + b"\nloss 2\n"
    assert OF_TORCH.sub(b"", said) == b"loss 1\nloss 2\n"


def test_a_long_check_takes_the_place_of_the_progress_until_it_ends(start):
    terminal, live = start()
    live.event(Checking("whether the module Net can be computed in slices"))
    assert terminal.lines() == ["checking whether the module Net can be computed in slices …"]
    live.event(Checking(""))
    assert terminal.lines() == ["2 workers, no step yet …"]


def test_without_a_terminal_a_long_check_is_a_line_of_its_own(monkeypatch):
    log = LogFile()
    monkeypatch.setattr(sys, "stderr", log)
    console = Console(stderr=True, highlight=False, markup=False, width=80)
    live = LiveLine(console, workers=2, quiet=False, script_to_stderr=False)
    for what in ("whether the module Net can be computed in slices", "") * 2:
        live.event(Checking(what))
    assert log.lines() == ["paceline: checking whether the module Net can be computed in slices …", ""]
