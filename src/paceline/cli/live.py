"""The live progress line of a run, on standard error, kept apart from the script's own output.

On a terminal, the line is drawn below the script's output, erased before the script prints more, and drawn again only
when the script's last line is complete, so that a script's own progress bar stays intact. Without a terminal, a plain
line is printed every 10 seconds in which there was a step.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from paceline.launch import Event, Notice, Output, Progress, Stall
from paceline.launch.events import Asking, Checking
from paceline.record.schema import Step
from paceline.reports.figure_text import spread_words
from paceline.tables.running import RunningFigures
from paceline.units import count, rate, seconds

PLAIN_EVERY = 10.0  # seconds between lines without a terminal, at first …
SLOWER, RAREST = 1.5, 600.0  # … then longer each time: a log of a week is still read
FEW = 5  # counted steps: the first ones take long, and say nothing about the time left


class LiveLine:
    """One per run. With `quiet` it shows no progress, but still passes on output and notices. The figures are those of
    the steps in `record` so far, which the summary shows at the end."""

    def __init__(
        self,
        console: Console,
        *,
        workers: int,
        quiet: bool,
        script_to_stderr: bool,
        record: Path | None = None,
        steps: int | None = None,
    ) -> None:
        self._console = console
        self._workers = workers
        self._steps = steps  # of the whole run, if that is known
        self._quiet = quiet
        self._script_to_stderr = script_to_stderr
        self._terminal = console.is_terminal and not quiet
        self._text = Text(f"{count(workers, 'worker')}, no step yet …", style="dim")
        self._check: Text | None = None  # takes the place of the text while Paceline checks something for long
        self._told_checks = set[str]()  # without a terminal
        self._drawn = self._asking = False
        self._line_complete = True  # whether the script's output ends in a newline, where this line would follow
        self._said, self._said_at = "", time.monotonic()  # the last line without a terminal
        self._every = PLAIN_EVERY
        self._running = RunningFigures(record)
        self._draw()

    def event(self, event: Event) -> None:
        """Shows an event that the launcher reports."""
        match event:
            case Output(stream=stream, data=data):
                self.output(stream, data)
            case Progress(steps=latest):
                self.progress(latest)
            case Notice(text=text):
                self.say(f"paceline: {text}", style="yellow")
            case Asking(now=now):
                self._asking = now
                self._take_away()
                self._draw()
            case Checking(what=what):
                self.checking(what)
            case Stall(text=text):
                self.say(text, style="bold yellow")

    def output(self, stream: str, data: bytes) -> None:
        """Passes the script's own output on, byte for byte."""
        if not data:
            return
        target = sys.stderr if stream == "stderr" or self._script_to_stderr else sys.stdout
        self._take_away()
        self._write(target, data)
        # Standard error, where this line goes, may be a log file that holds a progress bar.
        if target.isatty() or (target is sys.stderr and not self._quiet):
            self._line_complete = data.endswith(b"\n")
        self._draw()

    def progress(self, steps: Mapping[int, Step]) -> None:
        """Shows the latest step of each worker."""
        if self._quiet or not steps:
            return
        self._running.report(steps)
        self._text = self._describe(steps[min(steps)])
        if self._terminal:
            self._take_away()
            self._draw()
        elif time.monotonic() - self._said_at >= self._every and self._text.plain != self._said:
            self._said, self._said_at = self._text.plain, time.monotonic()
            self._every = min(self._every * SLOWER, RAREST)
            self._end_line()
            self._console.print("paceline:", self._text, soft_wrap=True)

    def checking(self, what: str) -> None:
        """Shows what is being checked, in the place of the progress; nothing: the check has ended."""
        self._check = Text(f"checking {what} …", style="dim") if what else None
        if self._terminal:
            self._take_away()
            self._draw()
        elif self._check is not None and not self._quiet and what not in self._told_checks:
            self._told_checks.add(what)
            self._end_line()
            self._console.print("paceline:", self._check, soft_wrap=True)

    def say(self, text: str, *, style: str = "") -> None:
        """Prints a message, also when quiet."""
        self._take_away()
        self._end_line()
        self._console.print(text, style=style, soft_wrap=True)
        self._draw()

    def close(self) -> None:
        """Erases the line and draws no more."""
        self._take_away()
        self._end_line()
        self._terminal = False

    def _describe(self, step: Step) -> Text:
        figures = self._running.figures()
        parts = [
            f"step {step.step:,}" + (f" of {self._steps:,}" if self._steps else ""),
            f"{rate(figures.samples_per_s)} samples/s" if figures.samples_per_s else "",
            f"{seconds(figures.step_time)} a step",
        ]
        if step.loss is not None:
            parts.append(f"loss {step.loss:.4g}")
        if step.noise is not None:
            parts.append(f"noise scale {step.noise:,.0f}")
        if self._workers > 1:
            parts.append(spread_words(figures))
        if self._steps and figures.counted >= FEW and figures.step_time > 0:
            parts.append(f"about {seconds(max(self._steps - step.step, 0) * figures.step_time)} left")
        return Text(" · ".join(part for part in parts if part), style="cyan")

    def _draw(self) -> None:
        if self._terminal and self._line_complete and not self._drawn and not self._asking:
            text = (self._check or self._text).copy()
            text.truncate(self._console.width - 1, overflow="ellipsis")
            self._console.print(text, end="", no_wrap=True)
            self._console.file.flush()
            self._drawn = True

    def _take_away(self) -> None:
        if self._drawn:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
            self._console.file.flush()
            self._drawn = False

    def _end_line(self) -> None:
        if not self._line_complete:
            self._console.file.write("\n")
            self._line_complete = True

    def _write(self, target: IO[str], data: bytes) -> None:
        try:
            target.flush()
            # Not through the buffer: it would stay locked while nobody reads, and the process needs that lock to end.
            raw: Any = getattr(target.buffer, "raw", target.buffer)  # type: ignore[attr-defined]
            while data:
                written = raw.write(data)
                if written is None:  # somebody has made the terminal non-blocking
                    select.select([], [target], [])
                data = data[written or 0 :]
        except BrokenPipeError:
            # The reader is gone (`| head`), which is no reason to stop training.
            pass
