"""The report of `tune`: the gain of each mod, and of all kept mods together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from paceline.advise.commands import command
from paceline.charts.chart import Axis, Bars, Chart, Label
from paceline.record.schema import Run
from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table, Text, Where
from paceline.reports.wording import say
from paceline.trials.tune.candidates import INEXACT, INEXACT_ACROSS, MORE, name_of, settings_of, summary_of
from paceline.trials.tune.patch import ByHand
from paceline.trials.tune.trials import NOISY
from paceline.trials.tune.verdict import Final, Known, Problem, Reason, Row, Verdict
from paceline.units import count, percent, rate, size

TOGETHER = "together"
MORE_TIME = "Allow more time: --budget 15m"
ADVICE = {
    Problem.BUDGET: f"{MORE_TIME}. Or give the script less data: trials need only the first steps.",
    Problem.NO_STEP: "Name the script that trains, with its arguments: paceline tune {script} --epochs 1",
    Problem.TOO_SHORT: "Give the script more to do: more epochs, more data, or a smaller batch.",
    Problem.LOSS: "Fix the script: find the step where its loss breaks, with --steps and a smaller learning rate.",
    Problem.FAILED: "Check that the script runs: paceline run {script}",
}


def advice(verdict: Verdict, script: str) -> str:
    """What the user can do about the verdict's problem."""
    return ADVICE[verdict.problem_code or Problem.FAILED].format(script=script)


def report(
    verdict: Verdict,
    *,
    run: Run | None = None,
    typed: Command | None = None,
    patch: str = "",
    path: Path | str = "",
    by_hand: Sequence[ByHand] = (),
    troubles: Sequence[Sentence] = (),
) -> Report:
    """`typed`: the command that keeps the mods, if it is not that of `run`, the series as recorded. `patch` and
    `by_hand` have the same effect in the script; `path`: the patch's file;
    `troubles`: why these could not be read."""
    about = f"Apply it in the script's folder: patch -p0 < {path}"
    changed = [Text("Or change the script", patch, diff=True, about=about)] if patch.strip() else []
    tried = [row for row in verdict.mods if row.gain is not None or row.code is not Reason.NOT_TRIED]
    return Report(
        lead=_lead(verdict),
        figures=_figures(verdict),
        said=[
            *[Sentence("The budget ended before all mods were tried.", "warn", MORE_TIME)] * verdict.cut_short,
            *_kept(verdict, run, typed),
        ],
        charts=charts(verdict),
        tables=[_table(verdict, "" if tried else "page")],
        after=[
            *(Sentence(f"{note}.") for note in verdict.notes[:20]),
            *troubles,
            *changed,
            *(Text(f"By hand: {one.mod}", one.lines) for one in by_hand if one.lines),
        ],
    )


def _lead(verdict: Verdict) -> list[Sentence]:
    found = [Sentence("interrupted: these results are not confirmed yet", "warn")] * verdict.interrupted
    if base := verdict.baseline:
        as_is = f"as is: {rate(base.samples_per_s)} samples/s, batch {base.batch:,}"
        noise = f"noise of a trial {percent(verdict.noise)}"
        found.append(Sentence(f"{count(verdict.trials, 'trial')} · {as_is}, {noise}", "strong"))
    return found


def _figures(verdict: Verdict) -> list[Figure]:
    figures = _together(verdict.final) if verdict.final and verdict.final.mods else []
    if base := verdict.baseline:
        how = "samples/s of the unmodified script: mean over its trials."
        figures.append(Figure("as it is", rate(base.samples_per_s), how, f"{base.trials} trials"))
    took = f"{verdict.trials} trials, {say(verdict.spent, 'seconds')}"
    how = "Relative standard deviation of one trial's speed."
    compared = ""
    if verdict.guard is not None and verdict.guard.steps:
        compared = f"losses: compared over {count(verdict.guard.steps, 'step')}; another seed changes them by "
        compared += percent(verdict.guard.seeds)
    return [*figures, Figure("noise", percent(verdict.noise), how, took, said=compared)]


def _together(final: Final) -> list[Figure]:
    ends = f"{final.gain_low:.2f}–{final.gain_high:.2f} in {count(final.pairs, 'pair')} of fresh processes"
    shown = ends if final.pairs else "in one fresh process, compared with earlier trials"
    how = "Speed with all kept mods divided by the unmodified script's, in paired trials at the end."
    detail = f"{say(final.gain_low, 'times')} to {say(final.gain_high, 'times')}, {final.pairs} pairs"
    said = f"{final.gain:.2f}× as fast ({shown}): {rate(final.samples_per_s)} samples/s"
    names, all_mods = ", ".join(final.mods), "samples/s with all kept mods."
    return [
        Figure("tuned", rate(final.samples_per_s), all_mods, names, "good", large=True),
        Figure("gain", say(final.gain, "times"), how, detail, "good" if final.gain > 1.01 else "", True, said),
        Figure("memory", size(final.memory), "Peak memory of a worker with all kept mods."),
    ]


def _kept(verdict: Verdict, run: Run | None, typed: Command | None) -> list[Sentence | Command]:
    """The command that keeps the mods, and what they change; or what is known if there are none."""
    final = verdict.final
    if final is None:
        return [Sentence(verdict.problem, "bad")] if verdict.problem and run else []
    if not final.mods:
        told = verdict.conclusion
        known = told.known is Known.NO_GAIN
        return [
            Sentence(
                f"{told.sentence[:1].upper()}{told.sentence[1:]}.",
                "warn" if not known else "good" if verdict.noise < NOISY else "",
                "" if known else MORE_TIME,
            )
        ]
    if typed is None and run is not None:
        mods, settings = settings_of(final.mods)
        more = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        typed = Command("Run it so", command(run, verb="run", more=more, mods=mods))
    larger = (
        "{} changes the mathematics: fewer, larger steps, and a learning rate that grows with the batch (SGD: "
        "linearly; Adam: with the square root). Check that the accuracy stays."
    )
    changes: list[str] = []
    for mod in final.mods:
        if name_of(mod) == MORE:
            changes.append(larger.format(mod))
        elif mod in (*INEXACT, *INEXACT_ACROSS):
            changes.append(f"{mod} gives up the same numbers: {summary_of(name_of(mod))}")
    return [*([typed] if typed else []), *(Sentence(text, "warn") for text in changes)]


def _table(verdict: Verdict, on: Where) -> Table:

    def row(row: Row) -> dict[str, Any]:
        differs = "–" if row.loss_difference is None else f"{100 * row.loss_difference:.2f} %"
        why = f"kept{f': {row.reason}' if row.reason else ''}" if row.kept else row.reason
        return msgspec.to_builtins(row) | {"why": why, "differs": differs}

    before = "samples/s of the mods in “tried on”, without this mod."
    kept = "Whether the gain exceeds the noise and the loss guard passes."
    return Table(
        name="mods",
        title="Mods",
        columns=(
            Column("mod", "mod", "Mod, as --mod takes it."),
            Column("kept", "kept", kept, "flag", on="page"),
            Column("before", "before", before, "rate"),
            Column("after", "after", "samples/s with this mod.", "rate"),
            Column("gain", "gain", "after divided by before.", "times"),
            Column(
                "loss_difference",
                "loss differs by",
                "Relative, in the loss guard.",
                "share",
                text="differs",
                short="loss diff.",
            ),
            Column("reason", "kept, or why not", "Why the mod was kept, or not.", wrap=True, text="why"),
            Column("on", "tried on", "Mods that were active without this mod.", on="page"),
        ),
        rows=[row(each) for each in verdict.mods],
        mark="kept",
        good=True,
        on=on,
    )


def charts(verdict: Verdict) -> list[Chart]:
    """The chart; empty if no mod was measured."""
    rows = [
        (row.mod, row.before, row.after, row.gain, "after, kept" if row.kept else "after, not kept")
        for row in verdict.mods
        if row.before is not None and row.after is not None and row.gain is not None
    ]
    if not rows:
        return []
    final = verdict.final
    if final is not None and final.mods:
        # Of the last check, whose speeds are those of fresh processes.
        rows.insert(0, (TOGETHER, final.samples_per_s / final.gain, final.samples_per_s, final.gain, TOGETHER))
    colours = {TOGETHER: "optimizer", "after, kept": "backward", "after, not kept": "data"}
    after = [
        Bars(
            name=name,
            y=[mod for mod, _, _, _, kind in rows if kind == name],
            x=[speed for _, _, speed, _, kind in rows if kind == name],
            colour=colour,
            horizontal=True,
            group="after",
        )
        for name, colour in colours.items()
        if any(kind == name for *_, kind in rows)
    ]
    return [
        Chart(
            name="gains",
            title="Before and after each mod",
            # The gain comes from pairs of trials, so it differs slightly from the ratio of two bars, which are means.
            caption="Mean samples/s without and with the mod, on the best set at that time. At each pair of bars: "
            "the gain, measured in pairs of trials.",
            x=Axis(title="samples/s", zero=True),
            y=Axis(kind="category", reverse=True),
            series=[
                Bars(
                    name="before",
                    y=[mod for mod, *_ in rows],
                    x=[before for _, before, *_ in rows],
                    colour="other",
                    horizontal=True,
                    group="before",
                ),
                *after,
            ],
            marks=[Label(x=max(before, speed), y=mod, text=f"{gain:.2f}×") for mod, before, speed, gain, _ in rows],
            height=max(170, 100 + 34 * len(rows)),
            wide=True,
        )
    ]
