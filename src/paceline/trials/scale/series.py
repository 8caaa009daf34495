"""The series of `scale`: short runs at each number of workers, interleaved, and the verdict on them.

The trials run in rounds (1, 2, 4, 4, 2, 1, 1, …), so that a disturbance or a drift of the machine affects all points
alike. A round that differs from the others by more than their noise is followed by one more. All trials run on one
zygote and from one seed. The throughput of a point is the median over rounds of the trial's median step; its spread is
the slowest and the fastest round. A speed-up is claimed only where its interval says so (`trials.core.interval`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import msgspec

from paceline.launch import Event, Zygote, launch
from paceline.launch.cluster.hosts import HostSpec, filled
from paceline.launch.local import OtherHosts
from paceline.record import Outcome, WorkerInfo, read_run, read_steps
from paceline.settings import RunSettings
from paceline.trials.core.bench import Place
from paceline.trials.core.interval import FEWEST, Interval, steady
from paceline.trials.core.same_numbers import Losses, SameNumbers, compare
from paceline.trials.core.summary import Summary, summarize
from paceline.trials.scale.border import Border
from paceline.trials.scale.why import Parts, ScaleSetting, Why, explain, join, take_apart
from paceline.units import count, percent

Mode = Literal["strong", "weak"]

AGAIN = 3  # most rounds that run again because others were disturbed
UNSTEADY = 0.2  # relative difference between rounds above which the machine is too busy to measure


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One short run of the plan."""

    workers: int
    round: int  # from 1
    settings: RunSettings
    hosts: int = 1

    @property
    def name(self) -> str:
        return f"round{self.round}-workers{self.workers}" + (f"-hosts{self.hosts}" if self.settings.spread else "")

    @property
    def place(self) -> tuple[int, int]:
        """What is measured: the number of workers, and the hosts that share them; 0: each host is filled."""
        return self.workers, self.settings.spread


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a trial. `failure` is empty if the trial succeeded."""

    trial: Trial
    summary: Summary
    losses: Losses
    setting: ScaleSetting
    parts: Parts | None = None  # of a typical step; None if no step was split into parts
    failure: str = ""
    cause: str = ""  # the failure in one line
    interrupted: bool = False
    exit_code: int = 0


class Point(msgspec.Struct, kw_only=True):
    """One number of workers. `low` and `high` are the slowest and the fastest round; those of the speed-up are the
    bounds of its interval, which compares each round with the same round of the base."""

    workers: int
    samples_per_s: float
    low: float
    high: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float | None  # speed-up per worker: 1.0 is perfect; None if one worker was not measured
    view: str
    step: dict[str, float]
    rounds: int
    tied: bool = False  # the interval has no difference from the base, or the rounds are too few for an interval
    why: Why | None = None  # causes of lost efficiency, none if tied; None if the steps were not split into parts
    hosts: int = 1
    added: float | None = None  # speed-up over the next smaller number of workers, for each time as many workers


class TrialFailure(msgspec.Struct, kw_only=True):
    """A failed trial; its number of workers is not measured again."""

    workers: int
    round: int
    message: str
    record: str
    cause: str = ""  # the message in one line


class Verdict(msgspec.Struct, kw_only=True):
    """The points, the same-numbers check, and the failures."""

    mode: Mode
    base: int  # the number of workers that all points are compared with
    rounds: int
    steps: int
    warm_up: int
    points: list[Point]
    same_numbers: SameNumbers
    failures: list[TrialFailure]
    border: Border | None = None  # None: the runs were on one host, or there was nothing to compare
    interrupted: bool = False
    warning: str = ""  # the rounds differ too much

    @property
    def tie(self) -> str:
        """What `tied` of a point means here; empty if no point is tied."""
        if not any(point.tied for point in self.points):
            return ""
        base = count(self.base, "worker")
        if max(point.rounds for point in self.points) < FEWEST:
            return f"fewer than {FEWEST} rounds: no difference from {base} can be told from chance"
        return f"no difference from {base} beyond the interval of the rounds"


def plan(
    settings: RunSettings, workers: Sequence[int], *, rounds: int, mode: Mode, hosts: Sequence[HostSpec] = ()
) -> list[Trial]:
    """The trials in the order to run them: in odd rounds the smallest number of workers first, in even ones last. On
    several hosts, also the largest number that fits on the first host, shared with the second one: the same workers
    with and without the border between hosts."""
    batch: Literal["keep", "scale"] = "scale" if mode == "weak" else "keep"
    places = {(n, 0) for n in workers}
    if len(hosts) > 1:
        fit = (n for n in workers if 2 <= n <= hosts[0].workers and n // 2 <= hosts[1].workers)
        places |= {(n, 2) for n in [max(fit, default=0)] if n}
    return [
        Trial(
            workers=n,
            round=r,
            settings=dataclasses.replace(settings, workers=n, batch=batch, spread=spread),
            hosts=spread or len(list(filled(hosts, n))) or 1,
        )
        for r in range(1, rounds + 1)
        for n, spread in sorted(places, reverse=r % 2 == 0)
    ]


def carry_out(
    trials: Sequence[Trial],
    *,
    zygote: Zygote | OtherHosts,
    record: Path,
    on_event: Callable[[Event], None],
    on_start: Callable[[Trial], None],
    on_result: Callable[[Result], None],
    affords: Callable[[], bool] = lambda: True,
) -> list[Result]:
    """Runs the trials, each with its own record below `record`, and more rounds after a disturbed one. Asks `affords`
    before each round but the first. A number of workers that fails is not tried again. A failure of the base ends the
    series, because there is nothing to compare with; so does an interrupt."""
    results: list[Result] = []
    failed: set[tuple[int, int]] = set()
    place = Place(record, on_event)
    for trial in _with_more_rounds(trials, results, affords):
        if trial.place in failed:
            continue
        on_start(trial)

        def run(folder: Path, settings: RunSettings = trial.settings) -> Outcome:
            # The verb has checked the numbers of workers.
            return launch(settings, zygote=zygote, record=folder, on_event=on_event, verb="scale", oversubscribe=True)

        outcome, folder = place.launched(trial.name, run)
        summary = summarize(folder)
        failure = outcome.message if outcome.exit_code else ""
        if not failure and not outcome.interrupted and summary.steps == 0:
            failure = "the script made no optimizer step: there is nothing to measure"
        if not failure and not outcome.interrupted and not summary.samples_per_s:
            failure = "the samples of the script's steps cannot be counted: there is no throughput to compare"
        cause = outcome.cause.partition("\n")[0] if outcome.exit_code else ""
        if cause and outcome.failed_rank is not None:
            cause = f"worker {outcome.failed_rank} {cause}"
        workers = read_run(folder).workers
        by_rank = [read_steps(folder, worker.rank) for worker in workers]
        result = Result(
            trial=trial,
            summary=summary,
            losses=[step.loss for step in by_rank[0]] if by_rank else [],
            setting=_setting(trial, workers),
            parts=take_apart([steps[summary.warm_up :] for steps in by_rank]),
            failure=failure,
            cause=cause,
            interrupted=outcome.interrupted,
            exit_code=outcome.exit_code,
        )
        results.append(result)
        on_result(result)
        if failure:
            failed.add(trial.place)
        if outcome.interrupted or (failure and trial is trials[0]):
            break
    return results


def _with_more_rounds(
    trials: Sequence[Trial], results: Sequence[Result], affords: Callable[[], bool]
) -> Iterator[Trial]:
    """The trials, round by round, and one more round for each that differs from the others."""
    rounds = [list(each) for _, each in groupby(trials, key=lambda trial: trial.round)]
    for number, each in enumerate(rounds):
        if number and not affords():
            return
        yield from each
    for number in range(len(rounds) + 1, len(rounds) + 1 + AGAIN):
        if all(len(steady(ratios)) >= len(rounds) for ratios in _paired(results).values()) or not affords():
            return
        # One of two orders in turn, like the rounds before.
        yield from (dataclasses.replace(trial, round=number) for trial in rounds[(number - 1) % min(2, len(rounds))])


def _paired(results: Sequence[Result]) -> dict[tuple[int, int], list[float]]:
    """Of each place but the first, the speed-ups by round; of a single place, its speeds."""
    good = [result for result in results if not result.failure and not result.interrupted]
    speeds = {(r.trial.place, r.trial.round): r.summary.samples_per_s for r in good}
    numbers = sorted({place for place, _ in speeds})
    rounds = sorted({number for _, number in speeds})
    if len(numbers) < 2:
        return {n: [speeds[n, r] for r in rounds] for n in numbers}
    base = numbers[0]
    return {
        n: [speeds[n, r] / speeds[base, r] for r in rounds if (n, r) in speeds and (base, r) in speeds]
        for n in numbers[1:]
    }


def judge(results: Sequence[Result], *, mode: Mode, record: Path, interrupted: bool) -> Verdict:
    """The verdict on the results, also on those before an interrupt."""
    good = [result for result in results if not result.failure and not result.interrupted]
    failures = [result for result in results if result.failure and not result.interrupted]
    by_place: dict[tuple[int, int], list[Result]] = {}
    for result in good:
        by_place.setdefault(result.trial.place, []).append(result)
    # A number of workers that failed in a later round gives no point: its earlier rounds alone are not comparable.
    for result in failures:
        by_place.pop(result.trial.place, None)
    by_workers = {workers: found for (workers, spread), found in by_place.items() if not spread}
    base = min(by_workers, default=min((r.trial.workers for r in results), default=1))
    base_results = by_workers.get(base, [])
    points = [_point(by_workers[n], base_results, mode) for n in sorted(by_workers)]
    for less, more in pairwise(points):
        more.added = (more.samples_per_s / less.samples_per_s) / (more.workers / less.workers)
    apart = next((place for place in by_place if place[1] and place[0] in by_workers), None)
    return Verdict(
        mode=mode,
        base=base,
        rounds=max((r.trial.round for r in results), default=0),
        steps=max((r.summary.steps for r in good), default=0),
        warm_up=max((r.summary.warm_up for r in good), default=0),
        points=points,
        same_numbers=_same_numbers(by_workers, base, mode),
        failures=[
            TrialFailure(
                workers=r.trial.workers,
                round=r.trial.round,
                message=r.failure,
                cause=r.cause,
                record=str(record / "trials" / r.trial.name),
            )
            for r in failures
        ],
        border=_border(by_place[apart], by_workers[apart[0]], mode) if apart is not None else None,
        interrupted=interrupted,
        warning=_unsteady(points),
    )


def _unsteady(points: Sequence[Point]) -> str:
    """A warning, if the fastest and the slowest round of a point differ widely."""
    spread = max((p.high / p.low - 1 for p in points if p.low > 0), default=0.0)
    if spread <= UNSTEADY:
        return ""
    return (
        f"The rounds differ by up to {percent(spread, digits=0)}: other processes keep this machine busy. Measure "
        "again when the machine is idle, or with a larger --repeat."
    )


def _point(results: Sequence[Result], base: Sequence[Result], mode: Mode) -> Point:
    speeds = {r.trial.round: r.summary.samples_per_s for r in results}
    base_speeds = {r.trial.round: r.summary.samples_per_s for r in base}
    speed = median(speeds.values())
    speedup = speed / median(base_speeds.values())
    paired = [speeds[r] / base_speeds[r] for r in speeds.keys() & base_speeds.keys()] or [speedup]
    interval = Interval.of(paired, told=speedup)
    workers, alone = results[0].trial.workers, base[0].trial.workers
    tied = workers != alone and not interval.clear
    why = _why(results, speed, base, median(base_speeds.values()), mode)
    if why is not None and (alone != 1 or tied):  # efficiency is that of one worker; chance has no cause
        why.lost, why.compute_lost, why.sentence = {}, {}, ""
    return Point(
        workers=workers,
        samples_per_s=speed,
        low=min(speeds.values()),
        high=max(speeds.values()),
        speedup=speedup,
        speedup_low=1.0 if workers == alone else interval.low,
        speedup_high=1.0 if workers == alone else interval.high,
        efficiency=speedup / workers if alone == 1 else None,
        tied=tied,
        view=results[-1].summary.view,
        step={part: fmean(r.summary.step[part] for r in results) for part in results[0].summary.step},
        rounds=len(results),
        why=why,
        hosts=results[0].trial.hosts,
    )


def _border(over: Sequence[Result], within: Sequence[Result], mode: Mode) -> Border:
    speeds, base = ({r.trial.round: r.summary.samples_per_s for r in results} for results in (over, within))
    speed, base_speed = median(speeds.values()), median(base.values())
    interval = Interval.of([speeds[r] / base[r] for r in speeds.keys() & base.keys()], told=speed / base_speed)
    why = _why(over, speed, within, base_speed, mode)
    return Border(
        workers=over[0].trial.workers,
        hosts=over[0].trial.hosts,
        within=base_speed,
        over=speed,
        kept=speed / base_speed,
        low=interval.low,
        high=interval.high,
        tied=not interval.clear,
        lost=why.lost if why is not None and interval.clear else {},
        waited_for=why.waited_for if why is not None else None,
    )


def _why(results: Sequence[Result], speed: float, base: Sequence[Result], base_speed: float, mode: Mode) -> Why | None:
    rounds = [r.parts for r in results if r.parts]
    base_rounds = [r.parts for r in base if r.parts]
    if not rounds or not base_rounds:
        return None
    setting, base_setting = results[0].setting, base[0].setting
    return explain(join(rounds, speed), join(base_rounds, base_speed), setting, base_setting, weak=mode == "weak")


def _setting(trial: Trial, workers: Sequence[WorkerInfo]) -> ScaleSetting:
    on_cores = [worker for worker in workers if not worker.gpus]
    cores = [(worker.host, core) for worker in on_cores for core in worker.cores]
    return ScaleSetting(
        workers=trial.workers,
        threads=max((worker.threads for worker in on_cores), default=0),
        shared_cores=len(set(cores)) < len(cores),
        mods=trial.settings.mods,
    )


def _same_numbers(by_workers: dict[int, list[Result]], base: int, mode: Mode) -> SameNumbers:
    if mode == "weak":
        return SameNumbers(checked=False, why="with --weak the batch grows with the workers, so the losses differ")
    if base not in by_workers:
        return SameNumbers(checked=False, why="no trial succeeded")
    first, *repeats = (result.losses for result in by_workers[base])
    repeated = compare(first, {base: repeats}) if repeats else None
    if repeated and repeated.checked and not repeated.same:
        return SameNumbers(
            checked=False,
            max_difference=repeated.max_difference,
            why=f"the script is not deterministic: its own runs on {base} worker{'s' * (base > 1)} differ",
        )
    return compare(first, {n: [r.losses for r in rs] for n, rs in by_workers.items() if n != base})
