"""`paceline scale`: measures throughput by number of workers, and checks that the script's numbers stay the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.progress import TaskID

from paceline.cli import series
from paceline.cli.hosts import on_hosts
from paceline.cli.options import WorkerOptions
from paceline.cli.session import Session
from paceline.cli.terminal import plotted, progress_bar, results, stderr
from paceline.cli.verb import alone, verb
from paceline.errors import UsageError
from paceline.launch import Event, Notice, Stall, check
from paceline.launch import events as launch_events
from paceline.launch.host import HostsGoneError
from paceline.options import option
from paceline.record.folder import short_name
from paceline.record.schema import Outcome
from paceline.reports.scale import charts, report
from paceline.reports.terminal import show
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.trials.scale import series as trials
from paceline.units import count, rate, seconds


def parse_workers(text: str, option: str = "-n") -> tuple[int, ...]:
    """`1,2,4` as numbers, each once, in order."""
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"-n {text}: not a list of numbers.", advice="Type it like this: -n 1,2,4") from None


app = alone()


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(WorkerOptions):
    workers: Sequence[int] = option(
        (),
        "Numbers of workers to measure: 1,2,4. On several hosts, each host is filled before the next.",
        "LIST",
        names="-n --workers",
        usual="1,2; on several hosts 1,2,4,… up to all workers",
        reads=parse_workers,
    )
    weak: bool = option(False, "Weak scaling: each worker keeps the script's batch.")
    repeat: int = option(3, "Rounds. With fewer than three, no difference can be told from chance.", "N", least=1)
    steps: int = option(30, "Number of steps of each trial.", "K", least=1)


@verb(app, "paceline scale -n 1,2,4 train.py --epochs 1", "paceline scale -n 2,4,8 --hosts a:4,b:4 train.py --epochs 1")
def scale(session: Session, settings: RunSettings, asked: ScaleOptions) -> None:
    settings = replace(settings, steps=asked.steps)
    if asked.weak and any(one.startswith("emulate=") for one in settings.mods):
        raise UsageError(
            "--weak and --mod emulate exclude each other: both multiply the batch.", advice="Leave one of them out."
        )
    mode: trials.Mode = "weak" if asked.weak else "strong"
    there = on_hosts(session, asked, settings, max(asked.workers, default=None), 2)
    numbers = asked.workers or [*(2**k for k in range(there.bit_length()) if 2**k < there), there]
    settings = replace(settings, workers=max(numbers))
    hosts = session.hosts.specs if session.hosts is not None else ()
    plan = trials.plan(settings, numbers, rounds=asked.repeat, mode=mode, hosts=hosts)
    # Checked before the record's folder is made, so that a user's mistake leaves no record.
    for trial in plan[: len(numbers)]:
        check(trial.settings, discover(), oversubscribe=asked.oversubscribe or session.hosts is not None)
    name, share = f"scale-{short_name(settings.script)}", settings.share_record
    record = session.open_record(asked.record, name, script=settings.script, share=share, labels=asked.labels())
    lost: HostsGoneError | None = None
    measured: list[trials.Result] = []
    outcome = Outcome(exit_code=1, seconds=0.0)
    try:
        outcome = carry_out(plan, session, record, settings, measured)
    except HostsGoneError as error:
        if not measured:
            raise
        lost = error
    verdict = trials.judge(measured, mode=mode, record=record, interrupted=outcome.interrupted)
    series.write_verdict(record, verdict)
    plot = plotted(charts(verdict), record / "plots" / "scale.svg", settings.script)
    if not session.quiet:
        show(results(json=session.json), report(verdict))
    # Different numbers are a result, not a failure. A point without a measurement is a failure.
    code = outcome.exit_code if outcome.interrupted else int(bool(verdict.failures or lost))
    told = series.document(verdict, trouble(verdict, lost) if code else None, plot=plot)
    series.finish(session, told, code=code, plots=[plot])


def carry_out(
    plan: list[trials.Trial], session: Session, record: Path, settings: RunSettings, measured: list[trials.Result]
) -> Outcome:
    """Runs the plan with a progress bar. Adds each result to `measured`. Writes run.json even after an error or an
    interrupt."""
    console, quiet = stderr(), session.quiet
    steps = settings.steps or 1
    told: set[str] = set()
    warm = [time.monotonic()]  # the end of the first trial, which has imported torch
    bar = progress_bar(console, quiet=quiet)
    task = TaskID(0)

    def on_event(event: Event) -> None:
        if isinstance(event, launch_events.Progress) and event.steps:
            bar.update(task, completed=len(measured) * steps + min(event.steps.items())[1].step)
        if isinstance(event, Notice | Stall) and event.text not in told:
            told.add(event.text)
            console.print(f"paceline: {event.text}", style="yellow", soft_wrap=True)

    def planned() -> int:
        """The trials of the plan, or as many as there are by now: a disturbed round is followed by one more."""
        return max(len(plan), len(measured))

    def on_start(trial: trials.Trial) -> None:
        here, of = len(measured) + 1, max(len(plan), len(measured) + 1)
        place = f"trial {here} of {of}: {words(trial)}"
        bar.update(task, description=place, completed=len(measured) * steps, total=of * steps)

    def on_result(result: trials.Result) -> None:
        measured.append(result)
        outcome.steps += result.summary.steps
        if result.interrupted:
            return
        trial = result.trial
        place = f"round {trial.round}, {words(trial)}"
        if result.failure:
            console.print(f"paceline: {place}: failed\n{result.failure}", style="red", soft_wrap=True)
        elif not quiet and not console.is_terminal:
            speed = rate(result.summary.samples_per_s)
            made, left = len(measured), ""
            if made == 1:
                warm[0] = time.monotonic()
            else:
                each = (time.monotonic() - warm[0]) / (made - 1)
                left = f", about {seconds(each * (planned() - made))} left"
            console.print(f"paceline: trial {made} of {planned()}{left}: {place}: {speed} samples/s", soft_wrap=True)

    # An interrupt between two trials ends the block; `launch` handles an interrupt during a trial.
    with series.recorded(record, series.run_of("scale", settings)) as outcome, bar:
        task = bar.add_task("starting", total=len(plan) * steps)
        trials.carry_out(
            plan, zygote=session.workers(), record=record, on_event=on_event, on_start=on_start, on_result=on_result
        )
        series.conclude(outcome, measured)
    return outcome


def words(trial: trials.Trial) -> str:
    """`4 workers`, and on how many hosts if on several."""
    return count(trial.workers, "worker") + (f" on {trial.hosts} hosts" if trial.hosts > 1 else "")


def trouble(verdict: trials.Verdict, lost: HostsGoneError | None) -> series.Trouble:
    """Why the exit code is not 0."""
    if lost is not None:
        return series.Trouble("HostLost", lost.message, f"The trials before are measured. {lost.advice}")
    failure = verdict.failures[0] if verdict.failures else None
    return series.Trouble(
        "Interrupted" if verdict.interrupted else "ScriptFailed",
        f"{count(failure.workers, 'worker')}, round {failure.round}: {failure.cause or failure.message}"
        if failure
        else "interrupted before all trials had ended",
        f"Look at the trial's record: {failure.record}" if failure else "Type the command again.",
    )
