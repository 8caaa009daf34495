"""`paceline demo`: runs a script plain and on workers, tunes it, and prints what to type next, in three minutes."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console

from paceline.cli.options import RECORDS, RecordOptions
from paceline.cli.series import Line, recorded, run_of
from paceline.cli.session import Session
from paceline.cli.terminal import results, stderr
from paceline.cli.tune import keep
from paceline.cli.verb import alone, verb
from paceline.options import OUTPUT, option, read_time
from paceline.record.private import write_file
from paceline.reports.demo import printed_report, tuned
from paceline.reports.terminal import show, tell
from paceline.settings import RunSettings, asked_threads
from paceline.topology import Host, discover
from paceline.trials.core.bench import Bench, Budget, Measured
from paceline.trials.demo.plain import copy_script
from paceline.trials.demo.printed import Printed
from paceline.trials.demo.series import ENOUGH, LEAST_TUNE, RESERVE, TUNE, ran_out_of_time, run_both, search_for
from paceline.trials.demo.story import Machine, about_tuning, about_workers, expect
from paceline.trials.scale import series as scaling
from paceline.trials.tune.verdict import Verdict
from paceline.units import count, rate

FOLDER = Path("paceline-demo")
STEPS = 1000  # limit of a tuning trial, above the number of steps that the demo's script makes

app = alone()


@dataclass(frozen=True, kw_only=True)
class DemoOptions(RecordOptions):
    budget: float | None = option(
        "3m",
        "Time limit for the demo: 90s, 3m. The tune gets the remaining time, at most one minute.",
        "TIME",
        reads=read_time,
    )
    folder: Path = option(FOLDER, "Folder for the demo's script.", "DIR", panel=OUTPUT)


@dataclass(slots=True, kw_only=True)
class Story:
    """The results of the demo so far."""

    machine: Machine
    script: Path
    parent: Path  # of the records
    printed: Printed | None = None
    scaled: scaling.Verdict | None = None
    tuned: Verdict | None = None
    told: dict[str, Any] = field(default_factory=dict)  # as `tune` reports: the command, the preset, the patch
    tuned_step: dict[str, float] = field(default_factory=dict)  # seconds of each part of a step
    tune_record: Path | None = None
    skipped: str = ""  # why nothing was tuned
    exit_code: int = 0

    @property
    def interrupted(self) -> bool:
        return self.exit_code > 128

    @property
    def view(self) -> str:
        where = [] if self.parent == RECORDS else ["--record", str(self.parent)]
        return shlex.join(["paceline", "view", *where])

    @property
    def conclusion(self) -> list[str]:
        points = self.scaled.points if self.scaled else []
        on_all = next((point for point in points if point.workers == self.machine.workers), None)
        return [about_workers(self.machine, on_all), about_tuning(self.tuned, self.tuned_step, skipped=self.skipped)]


@verb(app, "paceline demo")
def demo(session: Session, asked: DemoOptions) -> None:
    clock = Budget(asked.budget)
    host = discover()
    machine = Machine.of(cores=host.usable_cores, gpus=len(host.gpus), threads=asked_threads())
    story = Story(machine=machine, script=copy_script(asked.folder), parent=asked.record)
    console = results(json=session.json)
    console.quiet = session.quiet
    compare(story, session, clock, console)
    if not story.interrupted:
        tune(story, session, clock, host, console)
    if story.interrupted:
        console.print(f"paceline: interrupted. To see the measurements so far: {story.view}", soft_wrap=True)
    else:
        conclude(story, console)
    if session.json:
        session.print_document(document(story, clock))
    raise typer.Exit(story.exit_code)


def compare(story: Story, session: Session, clock: Budget, console: Console) -> None:
    """Part 1: runs the script plain and on workers. Writes a record like that of `scale`."""
    workers, script = story.machine.workers, str(story.script)
    console.print(f"1. The same numbers, plain and on {count(workers, 'worker')}", style="bold")
    console.print(expect(story.machine))
    console.print(f"  $ python {script}\n  $ paceline run -n {workers} {script}", soft_wrap=True)
    settings = RunSettings(script=script, workers=workers)
    record = session.open_record(story.parent, f"scale-{story.script.stem}", script=script)
    measured: list[scaling.Result] = []
    line = Line(stderr(), clock, quiet=console.quiet)

    def on_line(text: str) -> None:
        line.start(f"plain python: {text}")
        line.say(f"plain python: {text}")

    def on_result(result: scaling.Result) -> None:
        measured.append(result)
        speed = f"{rate(result.summary.samples_per_s)} samples/s"
        line.say(f"{_trial(result.trial)}: {'failed' if result.failure else speed}")

    with recorded(record, run_of("scale", settings)) as outcome:
        with line:
            line.start("plain python")
            story.printed = run_both(
                settings,
                zygote=session.workers,
                record=record,
                budget=clock,
                on_line=on_line,
                on_event=line.event,
                on_start=lambda trial: line.start(_trial(trial)),
                on_result=on_result,
            )
        outcome.steps = sum(result.summary.steps for result in measured)
        outcome.exit_code = int(not story.printed.same)  # the demo's script is deterministic: a difference is a bug
    story.exit_code = outcome.exit_code
    story.scaled = scaling.judge(measured, mode="strong", record=record, interrupted=outcome.interrupted)
    write_file(record / "verdict.json", msgspec.json.format(msgspec.json.encode(story.scaled)))
    if story.printed is not None:
        show(console, printed_report(story.printed, workers))


def tune(story: Story, session: Session, clock: Budget, host: Host, console: Console) -> None:
    """Part 2: a short `tune` of the unmodified script. Writes a record like that of `tune`."""
    console.print("\n2. What makes it faster", style="bold")
    seconds = min(TUNE, clock.left - RESERVE)
    if seconds < LEAST_TUNE:
        story.skipped = f"not tuned: the budget of {clock.seconds:.0f} s is spent; type: paceline tune {story.script}"
        console.print(story.skipped, style="yellow", soft_wrap=True)
        return
    console.print(f"  $ paceline tune --budget {seconds:.0f}s {story.script}", soft_wrap=True)
    settings = RunSettings(script=str(story.script), steps=STEPS, enough=ENOUGH)
    before = session.record
    story.tune_record = session.open_record(story.parent, f"tune-{story.script.stem}", script=str(story.script))
    session.record = before
    budget = Budget(seconds)
    line = Line(stderr(), budget, quiet=console.quiet)

    def on_result(measured: Measured) -> None:
        speed = f"{rate(measured.samples_per_s)} samples/s"
        line.say(f"{measured.name}: {speed if measured.ok else measured.message}")

    bench = Bench(
        settings,
        zygote=session.workers(),
        record=story.tune_record,
        budget=budget,
        verb="tune",
        on_event=line.event,
        on_start=lambda name: line.start(name, trial=True),
        on_result=on_result,
    )
    search = search_for(bench, host, tell=lambda text: console.print(f"  {text}", soft_wrap=True))
    with recorded(story.tune_record, run_of("tune", settings)) as outcome:
        with line:
            search.carry_out()
        outcome.exit_code = int(bool(search.problem) and not ran_out_of_time(search, budget))
    story.exit_code = outcome.exit_code if outcome.interrupted else story.exit_code or outcome.exit_code
    story.tuned = search.verdict(interrupted=outcome.interrupted)
    story.skipped = f"not tuned: {search.problem}; type: paceline tune {story.script}" if search.problem else ""
    story.told = keep(story.tuned, settings, story.tune_record, hosts=[], cuda=bool(host.gpus))
    if search.best:
        story.tuned_step = search.speeds.of(search.best)[-1].step
    if search.problem:
        console.print(story.skipped, style="yellow", soft_wrap=True)
    tell(console, *tuned(story.tuned, story.told["command"]))


def conclude(story: Story, console: Console) -> None:
    """Part 3: explains the results, and prints what to type next."""
    console.print("\n3. What scaled, what did not, and why", style="bold")
    for sentence in story.conclusion:
        console.print(sentence)
    console.print(f"\nsee it in a browser: {story.view}", style="bold", soft_wrap=True)
    if not shutil.which("paceline"):
        activate = Path(sys.prefix) / "bin" / "activate"
        hint = f"source {activate}" if activate.exists() else f"alias paceline='{sys.executable} -m paceline'"
        console.print(f"Your shell does not find paceline yet. Type first: {hint}", style="yellow", soft_wrap=True)


def document(story: Story, clock: Budget) -> dict[str, Any]:
    """What --json prints."""
    machine, tuned = story.machine, story.tuned
    final = tuned.final if tuned else None
    told: dict[str, Any] = {
        "script": str(story.script),
        "machine": {"cores": machine.cores, "gpus": machine.gpus},
        "workers": machine.workers,
        "expectation": expect(machine),
        "same_numbers": msgspec.to_builtins(story.printed),
        "points": msgspec.to_builtins(story.scaled.points) if story.scaled else [],
        "tune": {
            "baseline": msgspec.to_builtins(tuned.baseline) if tuned else None,
            "final": msgspec.to_builtins(final),
            "command": story.told.get("command"),
            "record": str(story.tune_record) if story.tune_record else None,
            "skipped": story.skipped,
        },
        "conclusion": story.conclusion,
        "view": story.view,
        "seconds": clock.spent,
    }
    if story.interrupted:
        told["error"] = {"type": "Interrupted", "message": "interrupted", "advice": "Type again: paceline demo"}
    elif story.printed is not None and not story.printed.same:
        told["error"] = {
            "type": "OtherNumbers",
            "message": "the numbers on workers differ from those of plain Python",
            "advice": "Please report this bug, with this document.",
        }
    elif story.exit_code:
        told["error"] = {
            "type": "NothingToTune",
            "message": story.skipped,
            "advice": "To check this machine, type: paceline doctor",
        }
    return told


def _trial(trial: scaling.Trial) -> str:
    return f"{count(trial.workers, 'worker')}, round {trial.round}"
