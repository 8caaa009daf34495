"""The live line on a terminal that the script writes to as well."""

from __future__ import annotations

import io
import re
import sys

import pytest
from fake_launch import one_step
from rich.console import Console

from paceline.cli.shared.live import LiveLine


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
    monkeypatch.setattr("paceline.cli.shared.live.PLAIN_EVERY", 0.0)
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
