"""What `demo` prints of its two parts."""

from __future__ import annotations

from paceline.reports.report import Column, Report, Sentence, Table
from paceline.trials.demo.printed import Printed
from paceline.trials.tune.verdict import Verdict
from paceline.units import count, rate


def printed_report(printed: Printed, workers: int) -> Report:
    """Both outputs side by side, and whether their numbers are the same."""
    rows = [
        {"plain": "(nothing)" if line.plain is None else line.plain, "workers": line.workers or "(nothing)"}
        | {"differs": not line.same}
        for line in printed.lines
    ]
    columns = (Column("plain", "plain python", wrap=True), Column("workers", count(workers, "worker"), wrap=True))
    return Report(
        tables=[Table(name="printed", title="Output", columns=columns, rows=rows, mark="differs")],
        said=_same(printed),
    )


def _same(printed: Printed) -> list[Sentence]:
    if printed.same:
        compared = f"{count(printed.numbers, 'number')} compared"
        most = f"largest relative difference {printed.max_difference:.1g}"
        return [Sentence(f"same numbers: yes ({compared}, {most})", "good")]
    no, first = Sentence("same numbers: no", "bad"), printed.first_difference
    if first is None:
        return [no, Sentence("The script printed no numbers to compare.")]
    line = printed.lines[first - 1]
    where = f"The first difference is in line {first}:"
    return [no, Sentence(f"{where}\n  plain:   {line.plain}\n  workers: {line.workers}")]


def tuned(verdict: Verdict, command: str | None) -> list[Sentence]:
    """The speed before and after tuning, and the command that keeps the mods."""
    final, baseline = verdict.final, verdict.baseline
    if final is None or baseline is None:
        return []
    if not final.mods:
        as_is = f"as is: {rate(baseline.samples_per_s)} samples/s"
        return [Sentence(f"{as_is}; {verdict.conclusion.sentence}", "strong")]
    speeds = f"as is: {rate(final.samples_per_s / final.gain)} samples/s → tuned: {rate(final.samples_per_s)} samples/s"
    gain = f"{final.gain:.2f}×, {final.gain_low:.2f}–{final.gain_high:.2f} in {count(final.pairs, 'pair')}"
    return [
        Sentence(f"{speeds} ({gain}): {', '.join(final.mods)}", "good"),
        Sentence(f"keep it: {command}", "strong"),
    ]
