"""What a run's measurements say, in one sentence, and what to type next.

The sentence claims only what stands out of the scatter of the steps: a share of the step, as a range where blocks of
steps differ; a worker that is late in most steps; a change of the throughput after which every block of steps is slower
than every block before. It names no cause that was not timed. Pure arithmetic over the steps of the first worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

import msgspec

from paceline.advise.commands import command
from paceline.record.phases import EVALUATION, OTHER, PHASES
from paceline.record.schema import Run
from paceline.tables.delays import Columns
from paceline.tables.figures import Figures, counted_steps
from paceline.units import count, percent, rate, seconds

FEWEST = 12  # steps that count: fewer say nothing about where the time goes
BLOCKS = 6  # of consecutive steps, whose shares are compared
NOTABLE = 0.1  # share of a step without computation that is worth the first sentence
AGREE = 0.1  # shares of blocks that differ by more than this are told as a range
SIDE, SHARE = 3, 0.15  # blocks before a change of the throughput, and after it, at least; and share of all blocks
LONGEST_BLOCK = 50  # steps
CHANGED = 1.2  # times the step time from which on a change is told
NO_COMPUTATION = {
    "communication": "communication",
    "data": "waiting for data",
    OTHER: "the script's own code outside the model",
}


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """`command` is empty if there is nothing to type; `about` says what the command is for."""

    sentence: str
    command: str = ""
    about: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The throughput is lower after a step, until the end: step times before and after it, and the phase that grew most
    (empty if the phases were not timed, or if no phase makes most of the difference)."""

    after: int
    before_time: float
    after_time: float
    phase: str = ""


def verdict(
    run: Run,
    figures: Figures,
    first: Columns | None,
    findings: Sequence[Mapping[str, object]],
    *,
    running: bool = False,
) -> RunVerdict:
    """`first`: the steps of the first worker; `findings` as in findings.json."""
    outcome = run.outcome
    made = count(figures.steps, "step")
    if outcome is not None and outcome.exit_code and not outcome.interrupted:
        why = (outcome.cause or outcome.error or f"exit code {outcome.exit_code}").splitlines()[0]
        why = why.removeprefix("raised ").rstrip(".")
        return RunVerdict(sentence=f"Failed after {made}: {why}.")
    finding = _standing(findings)
    said = " ".join(_sentences(run, figures, first, str(finding.get("title", "")) if finding else ""))
    if running:
        return RunVerdict(sentence=f"In progress, {made} so far. {said}")
    if outcome is None or outcome.interrupted:
        said = f"Stopped after {made}. {said}".strip()
    typed, about = _next(run, finding, said)
    return RunVerdict(sentence=said, command=typed, about=about)


def _sentences(run: Run, figures: Figures, first: Columns | None, title: str) -> list[str]:
    workers = count(len(run.workers), "worker")
    if not figures.steps:
        return [f"{workers}: no optimizer step was recorded."]
    if first is None or figures.counted < FEWEST:
        few = f"{count(figures.counted, 'step')} after warm-up, too few to say where the time goes"
        return [f"{workers}: {_lower(title)}." if title else f"{workers}: {few}."]
    said = []
    late = figures.slowest
    if late is not None and late.slow:
        said.append(
            f"{workers}: worker {late.rank} keeps the others waiting, {seconds(late.behind)} per step since step "
            f"{late.since:,}, in {late.cause}."
        )
    if not figures.split:
        said.append(f"{workers}: the parts of a step were not timed.")
    elif not said:
        said.append(f"{workers}: {_shares(first)}.")
    change = slowed(first)
    if change is not None:
        # Behind a late worker, the first worker waits: that is no cause.
        blamed = late is None or not late.slow
        said.append(_change(change, figures.batch, change.phase if blamed else ""))
    return said


def _shares(first: Columns) -> str:
    """The largest of communication, waiting for data and the script's own code, if it is notable in every block; else
    the computation."""
    blocks = _blocks(_rows(first), BLOCKS)
    found = {
        words: (min(shares), max(shares))
        for phase, words in NO_COMPUTATION.items()
        for shares in [[_share(first, block, (phase,)) for block in blocks]]
    }
    words, (low, high) = max(found.items(), key=lambda each: each[1][0])
    if low >= NOTABLE:
        return f"{_range(low, high)} of a step is {words}"
    shares = [_share(first, block, ("forward", "backward", "optimizer")) for block in blocks]
    return f"{_range(min(shares), max(shares))} of a step is computation"


def _range(low: float, high: float) -> str:
    if high - low > AGREE:
        return f"{percent(low, digits=0)} to {percent(high, digits=0)}"
    return percent((low + high) / 2, digits=0)


def _rows(first: Columns) -> list[int]:
    """Places of the steps that count and were split."""
    counted = set(counted_steps(first))
    found = [n for n, step in enumerate(first["step"]) if step in counted]
    split = [n for n in found if first["split"][n]]
    return split or found


def _blocks(rows: Sequence[int], most: int) -> list[Sequence[int]]:
    edges = [len(rows) * k // most for k in range(most + 1)]
    return [rows[a:b] for a, b in pairwise(edges) if b > a]


def _share(first: Columns, rows: Sequence[int], phases: Sequence[str]) -> float:
    whole = sum(first["total"][n] - first[EVALUATION][n] for n in rows)
    return sum(first[phase][n] for phase in phases for n in rows) / whole if whole > 0 else 0.0


def slowed(first: Columns) -> Change | None:
    """The step after which the throughput is lower until the end, beyond the scatter: every block of steps after it is
    slower than every block before it."""
    rows = [n for n, traced in enumerate(first["traced"]) if not traced and first["samples"][n] > 0]
    # Steps of the warm-up count, too, but for the first: a stall among them is part of the scatter.
    rows = rows[max(len(rows) // 10, 1) :]
    if len(rows) < 4 * SIDE:
        return None
    usual = median(first["samples"][n] for n in rows)
    # Step time for the usual number of samples: the last batch of an epoch is smaller.
    took = [(first["total"][n] - first[EVALUATION][n]) * usual / first["samples"][n] for n in rows]
    long = min(LONGEST_BLOCK, max(len(rows) // 30, 3))
    blocks = [(start, median(took[start : start + long])) for start in range(0, len(rows) - long + 1, long)]
    times = [time for _, time in blocks]
    best, at, least = 0.0, 0, max(SIDE, int(SHARE * len(blocks)))
    for cut in range(least, len(blocks) - least + 1):
        before, after = times[:cut], times[cut:]
        if min(after) > max(before) and median(after) / median(before) > max(best, CHANGED):
            best, at = median(after) / median(before), cut
    if not at:
        return None
    here = blocks[at][0]
    middle = (median(took[:here]) * median(took[here:])) ** 0.5
    while here > 1 and took[here - 1] > middle:  # the change is somewhere in the block before, or in this one
        here -= 1
    while took[here] < middle:
        here += 1
    return Change(
        after=first["step"][rows[here]] - 1,
        before_time=median(took[:here]),
        after_time=median(took[here:]),
        phase=_grown(first, rows[:here], rows[here:]),
    )


def _grown(first: Columns, before: Sequence[int], after: Sequence[int]) -> str:
    before, after = [n for n in before if first["split"][n]], [n for n in after if first["split"][n]]
    if not before or not after:
        return ""
    more = {
        phase: fmean(first[phase][n] for n in after) - fmean(first[phase][n] for n in before)
        for phase in PHASES
        if phase != EVALUATION
    }
    phase, grown = max(more.items(), key=lambda each: each[1])
    return phase if grown > 0.5 * sum(max(each, 0.0) for each in more.values()) else ""


def _change(change: Change, batch: int, phase: str) -> str:
    left = change.before_time / change.after_time
    fell = "by half" if 0.46 <= left <= 0.54 else f"by {percent(1 - left, digits=0)}"
    speeds = (
        f", from {rate(batch / change.before_time)} to {rate(batch / change.after_time)} samples/s" if batch else ""
    )
    where = f": a step takes {seconds(change.after_time - change.before_time)} more"
    return f"Throughput fell {fell} after step {change.after:,}{speeds}{where}" + (
        f", most of it in {phase}." if phase else "."
    )


def _lower(title: str) -> str:
    return f"{title[:1].lower()}{title[1:]}"


def _standing(findings: Sequence[Mapping[str, object]]) -> Mapping[str, object] | None:
    """The first finding with a command that no trial refuted."""
    for each in findings:
        measured = each.get("measured_gain")
        refuted = each.get("tied") is True or (isinstance(measured, int | float) and measured <= 1.0)
        if each.get("command") and not refuted:
            return each
    return None


def _next(run: Run, finding: Mapping[str, object] | None, said: str) -> tuple[str, str]:
    """The command of a finding, whose title is not `said` again; else the next verb."""
    if finding is not None:
        measured, predicted = finding.get("measured_gain"), finding.get("predicted_gain")
        gain = f": measured {measured:.3g}×" if isinstance(measured, int | float) else ""
        if not gain and isinstance(predicted, int | float):
            gain = f": predicted {predicted:.3g}×, not measured"
        told = str(finding.get("title", ""))
        return str(finding["command"]), gain.removeprefix(": ") if gain and _lower(told) in said else f"{told}{gain}"
    if run.settings.get("launch_as") or not run.script:
        return "", ""
    if run.verb != "profile":
        return command(run, verb="profile"), "shows where the time of a step goes, op by op"
    if len(run.workers) == 1:
        return command(run, verb="scale", more=["-n", "1,2"]), "measures what a second worker gains"
    return command(run, verb="tune"), "tries the mods that may make the script faster, and measures each"
