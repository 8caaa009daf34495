"""The progress of a series of trials, on standard error: which trial of how many, its step, and the time left."""

from __future__ import annotations

from rich.console import Console

from paceline.cli.terminal import progress_bar
from paceline.launch import Event, Notice, Stall
from paceline.launch import events as launch_events
from paceline.trials.core.bench import Budget
from paceline.units import seconds


class Line:
    """One per series. Without a terminal there is no bar, and each result is printed as one line."""

    def __init__(self, console: Console, budget: Budget, *, quiet: bool) -> None:
        self._console, self._budget, self._quiet = console, budget, quiet
        self._told: set[str] = set()
        self._what = ""
        self._trial = 0  # number of the current trial
        self.trials: int | None = None  # of the series, if that is known
        self._bar = progress_bar(console, quiet=quiet)
        self._task = self._bar.add_task("starting", total=budget.seconds)

    def __enter__(self) -> Line:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start(self, what: str, *, trial: bool = False) -> None:
        """Shows what runs now. `trial`: it is the next trial of the series."""
        self._trial += trial
        self._what = f"{self._place()}: {what}" if trial else what
        self._update(self._what)

    def event(self, event: Event) -> None:
        if isinstance(event, launch_events.Progress) and event.steps:
            step = min(event.steps.items())[1].step
            self._update(f"{self._what}, step {step:,}")
        if isinstance(event, Notice | Stall) and event.text not in self._told:
            self._told.add(event.text)
            self._console.print(f"paceline: {event.text}", style="yellow", soft_wrap=True)

    def say(self, text: str) -> None:
        """Prints the result of the current trial, if there is no bar."""
        if not self._quiet and not self._console.is_terminal:
            place = f"{self._place()}{self._left()}: " if self._trial else ""
            self._console.print(f"paceline: {place}{text}", soft_wrap=True)

    def _place(self) -> str:
        known = self.trials is not None and self.trials >= self._trial
        return f"trial {self._trial}" + (f" of {self.trials}" if known else "")

    def _update(self, text: str) -> None:
        """Without a budget, the bar counts trials."""
        counts = self.trials is not None and self._budget.seconds is None
        self._bar.update(
            self._task,
            description=text,
            total=self.trials if counts else self._budget.seconds,
            completed=self._trial - 1 if counts else self._budget.spent,
        )

    def _left(self) -> str:
        """The time left: the budget's, or that of the trials to come, if they take as long as those before."""
        ends = []
        if self.trials is not None:
            ends.append(self._budget.spent / self._trial * max(self.trials - self._trial, 0))
        if self._budget.seconds is not None:
            ends.append(max(self._budget.seconds - self._budget.spent, 0.0))
        return f", at most {seconds(min(ends))} left" if ends else ""
