"""The report of `fit`: what holds the memory, which changes make the script fit, and the command."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.charts.chart import Axis, Bars, Chart
from paceline.record.account import KINDS, Account, Part
from paceline.reports.report import Column, Command, Figure, Report, Sentence, Table
from paceline.reports.speeds import SPEED
from paceline.trials.core.result import Status
from paceline.trials.fit.search import AS_IT_IS, FREE, Row, Verdict
from paceline.units import percent, size

SHOWN = 8  # parts in a terminal
ABOUT = {
    "weights": "Parameters and buffers of the models.",
    "gradients": "Of the parameters, at the peak.",
    "optimizer state": "Momenta and the like.",
    "activations": "Made by modules in forward, and kept for backward.",
    "outputs and losses": "Made by the script outside of its models.",
    "backward": "Made in backward, and no gradient of a parameter.",
    "optimizer's own tensors": "Made in the optimizer's step.",
}


def report(verdict: Verdict, *, typed: Command | None = None) -> Report:
    """`typed`: the command with which the script fits."""
    account = verdict.account
    return Report(
        lead=[Sentence("interrupted: these are the results of the finished trials", "warn")] * verdict.interrupted,
        figures=_figures(verdict),
        said=[*([typed] if typed else []), *_said(verdict)],
        charts=charts(verdict),
        tables=[
            *([_trials(verdict)] if len(verdict.rows) > 1 else []),
            *([_account(account)] if account is not None and account.parts else []),
        ],
    )


def headline(verdict: Verdict) -> str:
    """In a few words, for a list."""
    if verdict.fits:
        return "fits as it is"
    if verdict.chosen is not None:
        return f"fits with {name_of(verdict.rows[verdict.chosen])}"
    return verdict.problem or "nothing made it fit"


def name_of(row: Row) -> str:
    """The change in words."""
    spread = [f"{row.strategy} on {row.workers} workers"] if row.strategy else []
    return " + ".join([*spread, *row.change]) or (AS_IT_IS if row.limited else FREE)


def accounted(account: Account) -> list[str]:
    """What held the memory, in at most three lines."""
    kinds = [(kind, account.of(kind)) for kind in KINDS]
    shares = ", ".join(f"{kind} {size(held)}" for kind, held in kinds if held)
    of = f" of {size(account.total)}" if account.total else ""
    told = [f"at the peak (step {account.step}, {account.phase}) {size(account.peak)}{of}: {shares}"]
    if largest := next((part for part in account.parts if part.module or part.line), None):
        told.append(f"the largest part: {_where(largest)}, {size(largest.bytes)} in {largest.tensors:,} tensors")
    if account.failed:
        asked = f" for {size(account.asked)} more" if account.asked else ""
        told.append(f"memory ran out{asked} at {account.failed}" + (f", in {account.module}" if account.module else ""))
    return told


def _where(part: Part) -> str:
    return ", ".join(filter(None, (part.module, part.line))) or part.kind


def _figures(verdict: Verdict) -> list[Figure]:
    found = []
    if verdict.account is not None and verdict.account.peak:
        account = verdict.account
        how = "Bytes of all tensors at the peak of the first steps."
        found.append(Figure("peak as it is", size(account.peak), how, said="\n".join(accounted(account))))
    if verdict.chosen is not None:
        row = verdict.rows[verdict.chosen]
        peak = f", {size(row.memory)} at the peak" if row.memory else ""
        line = f"fits: {name_of(row)}{peak}{_cost(verdict, row)}"
        how = "The fastest change that fits and keeps the losses."
        found.append(Figure("fits with", name_of(row), how, "", "good", True, line))
    return found


def _cost(verdict: Verdict, row: Row) -> str:
    free = next((one for one in verdict.rows if not one.limited and one.samples_per_s), None)
    if free is None or not row.samples_per_s or row is free:
        return ""
    return f", {free.samples_per_s / row.samples_per_s:.2f} × the time of a step without the limit"


def _said(verdict: Verdict) -> list[Sentence]:
    said = []
    account = verdict.account
    if verdict.chosen is not None and not verdict.fits:
        row = verdict.rows[verdict.chosen]
        if row.away is not None:
            said.append(
                Sentence(f"Its first losses differ by {row.away:.1e} from those of the run {_as(verdict.compared)}.")
            )
        elif row.exact:
            said.append(Sentence("Its losses were compared with no other run: nothing else fits.", "quiet"))
        if not row.exact:
            said.append(Sentence("It changes the script's numbers, as was allowed.", "warn"))
    if account is not None and account.leaks and verdict.chosen is None:
        grown = account.leaks[0]
        said.append(
            Sentence(
                f"Memory grows from step to step: {size(grown.bytes)} more after each, {_where(grown)}.",
                "bad",
                "The script keeps tensors of earlier steps: append loss.item() to a list, not loss.",
            )
        )
    if account is not None and account.others > 0.05 * (account.total or 1):
        said.append(
            Sentence(
                f"Other processes hold {size(account.others)} of the device's {size(account.total)}.",
                "warn",
                "Look which: nvidia-smi",
            )
        )
    if account is not None and account.reserved > 1.15 * account.allocated > 0 and verdict.chosen is None:
        said.append(
            Sentence(
                f"torch's allocator held {size(account.reserved)} for {size(account.allocated)}: blocks of many sizes "
                "leave gaps.",
                "warn",
                "Type before the command: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            )
        )
    if account is not None and account.compiled:
        said.append(Sentence("The script compiles its model; the account is that of the operations before.", "quiet"))
    if verdict.chosen is None and not verdict.problem and not verdict.interrupted:
        said.append(_hopeless(verdict))
    return said


def _as(compared: str) -> str:
    return compared if compared in (FREE, "") else f"with {compared}"


def _hopeless(verdict: Verdict) -> Sentence:
    account = verdict.account
    allow = "Changes of precision were not tried: --allow exactness"
    if account is not None and account.total and account.fixed > 0.9 * account.total:
        share = percent(account.fixed / account.total, digits=0)
        return Sentence(
            f"Weights, gradients and the optimizer's state alone take {size(account.fixed)}, {share} of the memory.",
            "bad",
            "More GPUs divide them: paceline fit -n 2, or paceline run --strategy sharded -n 2",
        )
    return Sentence("No change that was tried makes the script fit.", "bad", allow)


def complaint(verdict: Verdict) -> str:
    """What went wrong, in one line."""
    return verdict.problem or "nothing that was tried makes the script fit"


def advice(verdict: Verdict) -> str:
    """What to type."""
    if verdict.failed:
        return f"Read the trial's output, log.rank0.txt in its record: {verdict.failed}"
    return "Choose a smaller batch, or a device with more memory."


def _trials(verdict: Verdict) -> Table:
    signs = {Status.MEMORY: "out of memory", Status.UNSUPPORTED: "not possible", Status.TOO_SHORT: "too short to time"}

    def row(number: int, one: Row) -> dict[str, object]:
        fits = "chosen" if number == verdict.chosen else "fits" if one.fits else signs.get(one.status, str(one.status))
        return {
            "change": name_of(one),
            "memory": one.memory or None,
            "samples_per_s": one.samples_per_s or None,
            "low": one.low or None,
            "high": one.high or None,
            "away": "" if one.away is None else f"{one.away:.1e}",
            "sign": fits if one.limited else "for comparison",
            "message": one.message if not one.fits else "",
        }

    return Table(
        name="trials",
        title="What was tried",
        columns=(
            Column("change", "change", "Mods and strategy of the trial.", wrap=True),
            Column("memory", "peak", "Peak memory of the worker that used most.", "bytes"),
            SPEED,
            Column("away", "losses", "Largest relative difference of the first losses from those of the other run."),
            Column("sign", ""),
            Column("message", "why not", "Why there is no measurement.", on="page", wrap=True),
        ),
        rows=[row(number, one) for number, one in enumerate(verdict.rows)],
    )


def _account(account: Account) -> Table:
    return Table(
        name="account",
        title="What holds the memory at the peak",
        columns=(
            Column("kind", "what", "What the tensors are."),
            Column("bytes", "bytes", "Of all tensors of this kind that were alive at the peak.", "bytes"),
            Column("share", "share", "Of the peak.", "percent", bar=True),
            Column("tensors", "tensors", "Their number.", "count"),
            Column("module", "module", "Whose forward made them; a number as *: all blocks together.", wrap=True),
            Column("line", "line", "The script's innermost line under which they were made.", wrap=True, cut="start"),
        ),
        rows=[
            {
                "kind": part.kind,
                "bytes": part.bytes,
                "share": part.bytes / account.peak if account.peak else 0.0,
                "tensors": part.tensors,
                "module": part.module,
                "line": part.line,
            }
            for part in account.parts
        ],
    )


def charts(verdict: Verdict) -> list[Chart]:
    """The account by kind, and the peaks of what was tried."""
    account, found = verdict.account, []
    if account is not None and account.peak:
        kinds = [kind for kind in KINDS if account.of(kind)]
        found.append(
            Chart(
                name="account",
                title="What holds the memory at the peak",
                caption=f"Step {account.step}, {account.phase}. " + " ".join(f"{k}: {ABOUT[k]}" for k in kinds),
                x=Axis(title="GiB", zero=True),
                y=Axis(kind="category", reverse=True),
                series=[_bars("held", kinds, [account.of(kind) / 2**30 for kind in kinds])],
            )
        )
    rows = [row for row in verdict.rows if row.memory]
    if len(rows) > 1:
        found.append(
            Chart(
                name="peaks",
                title="Peak memory of what was tried",
                caption="Of the worker that used most. One that ran out of memory shows what it had until then.",
                x=Axis(title="GiB", zero=True),
                y=Axis(kind="category", reverse=True),
                series=[_bars("peak", [name_of(row) for row in rows], [row.memory / 2**30 for row in rows])],
            )
        )
    return found


def _bars(name: str, labels: Sequence[str], values: Sequence[float]) -> Bars:
    return Bars(name=name, x=list(values), y=list(labels), colour="accent", horizontal=True)
