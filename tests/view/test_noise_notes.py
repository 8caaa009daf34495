"""Pages of a series repeat the warnings and ties that the terminal shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from verb_records import make_converge
from view_records import make_tune

from paceline import view
from paceline.record import Run
from paceline.reports import bandwidth, converge, scale, sweep, tune
from paceline.reports.figure_text import slowest
from paceline.reports.report import Report, Sentence
from paceline.reports.terminal import show
from paceline.tables.delays import Delay
from paceline.tables.figures import Figures
from paceline.trials.bandwidth.verdict import CollectiveRate
from paceline.trials.bandwidth.verdict import Verdict as Bandwidth
from paceline.trials.converge.series import ALONE, Spread
from paceline.trials.converge.series import Row as ConvergedRow
from paceline.trials.converge.series import Verdict as Converged
from paceline.trials.core.same_numbers import SameNumbers
from paceline.trials.scale.series import Point as Scaled
from paceline.trials.scale.series import Verdict as Scaling
from paceline.trials.sweep.search import Ceiling, Point, Verdict, ties, unsteady
from paceline.trials.tune.verdict import Final, Reason, Row, Speed
from paceline.trials.tune.verdict import Verdict as Tuned

RUN = Run(paceline="0", verb="converge", script="train.py", arguments=["--lr", "1"], settings={"workers": 1})
SCALES = Path(view.__file__).parent / "static" / "scales.js"


def notes(report: Report) -> str:
    return "\n".join(each.text for each in (*report.said, *report.after) if isinstance(each, Sentence))


def tiles(report: Report) -> dict[str, str]:
    return {figure.label: figure.value for figure in report.figures}


def printed(report: Report) -> str:
    """What a terminal shows."""
    shown = io.StringIO()
    show(Console(file=shown, width=200), report)
    return shown.getvalue()


def test_a_sweep_in_noise_names_no_knee_and_no_best():
    points = [Point(batch=64 << k, fits=True, samples_per_s=100.0 + k, low=60.0, high=150.0) for k in range(3)]
    verdict = Verdict(
        workers=1, mods=[], own=64, points=points, knee=None, best=None, tied=ties(points), largest=256,
        ceiling=Ceiling.FLAT, why="flat", warning=unsteady(points),
    )  # fmt: skip
    blocks = sweep.report(verdict)
    assert "64 to 256 samples a step are equally fast" in notes(blocks)
    assert "other processes keep this machine busy" in notes(blocks)
    assert tiles(blocks).keys() == {"largest tried", "the script's own"}


@pytest.mark.parametrize("ceiling", Ceiling)
def test_only_a_sweep_that_ran_out_of_memory_names_the_largest_batch_that_fits(ceiling):
    point = Point(batch=128, fits=True, samples_per_s=100.0, low=90.0, high=110.0)
    verdict = Verdict(
        workers=1, mods=[], own=128, points=[point], knee=None, best=128, largest=128, ceiling=ceiling, why="the end",
    )  # fmt: skip
    assert ("largest that fits" in tiles(sweep.report(verdict))) is (ceiling is Ceiling.MEMORY)


def converged(*seeds: float, alone: tuple[float, ...]) -> Converged:
    def row(technique: str, found: tuple[float, ...]) -> ConvergedRow:
        spread = Spread(mean=sum(found) / len(found), low=min(found), high=max(found), seeds=len(found))
        return ConvergedRow(workers=8, technique=technique, mods=[], accuracy=spread)

    return Converged(
        workers=8, seeds=len(seeds), target=None, rows=[row(ALONE, alone), row("naive", seeds)], chosen="naive"
    )


@pytest.mark.parametrize(
    ("verdict", "label", "proven"),
    [
        (converged(0.71, 0.72, alone=(0.70, 0.73)), "best technique", True),
        (converged(0.60, alone=(0.704,)), "highest of one seed", False),
        (converged(0.71, alone=(0.704,)), "highest of one seed", False),
        (converged(0.60, 0.61, alone=(0.70, 0.73)), "best technique", False),
    ],
)
def test_a_green_tick_stands_beside_no_number_that_contradicts_it(verdict, label, proven):
    """'Best technique: naive' in green, beside 10.4 points less than one worker, from one seed."""
    report = converge.report(verdict, RUN)
    shown = {figure.label: figure for figure in report.figures}
    assert (shown[label].value, shown[label].tone == "good", verdict.proven) == ("naive", proven, proven)
    assert not (shown["against one worker"].tone == "good" and not proven)
    assert ("best of 8 workers" in printed(report)) is proven


@pytest.mark.parametrize(("behind", "tone"), [(0.05, "good"), (0.848, "")])
def test_workers_that_differ_widely_are_not_called_even(behind, tone):
    late = Delay(rank=1, own=1.0, behind=0.1, share=behind, slow=False, since=None)
    [tile] = slowest(Figures(slowest=late, spread=behind))
    assert (tile.value, tile.tone) == ("none", tone)


def test_ticks_at_equal_distances_have_equal_differences(browser):
    """67.5, 65, 62.5 and 60 % were 68, 65, 63 and 60 %."""
    lines = SCALES.read_text().splitlines()
    source = "\n".join(line for line in lines if not line.startswith(("import", "export")))
    page = browser.new_page()
    at = "[0.675, 0.65, 0.625, 0.6, 0.0025].map((at) => shown(at, { tickformat: '.0%' }))"
    ticks = page.evaluate(f"() => {{ {source}\n return {at} }}")
    page.close()
    assert ticks == ["67.5 %", "65 %", "62.5 %", "60 %", "0.25 %"]


def test_a_scale_without_one_worker_shows_no_efficiency():
    point = Scaled(
        workers=4, samples_per_s=100.0, low=90.0, high=140.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0,
        efficiency=None, view="batch", step={}, rounds=2,
    )  # fmt: skip
    verdict = Scaling(
        mode="strong", base=4, rounds=2, steps=9, warm_up=1, points=[point], same_numbers=SameNumbers(checked=False),
        failures=[], warning="The rounds differ by up to 56 %.",
    )  # fmt: skip
    blocks = scale.report(verdict)
    assert "efficiency" not in tiles(blocks)
    assert "No efficiency: one worker was not measured." in notes(blocks)
    assert "The rounds differ by up to 56 %." in notes(blocks)


def test_a_bandwidth_in_noise_repeats_the_warning():
    rate = CollectiveRate(
        op="all_reduce", backend="gloo", algorithm="its own", workers=2, bytes=1024, seconds=2e-3, low=1e-3, high=4e-3,
        algbw=1.0, busbw=1.0, share=0.5,
    )  # fmt: skip
    empty: dict = {name: [] for name in ("copies", "copy_limits", "flags", "notes", "failures")}
    verdict = Bandwidth(workers=2, pairs=[], collectives=[rate], interrupted=False, **empty)
    assert "The slowest round took 300 % longer" in notes(bandwidth.report(verdict))


@pytest.mark.parametrize("tied", [True, False])
def test_a_converge_whose_seeds_overlap_names_no_best(tmp_path, client_of, tied):
    folder = make_converge(tmp_path / "converge")
    if tied:
        verdict = json.loads((folder / "verdict.json").read_text())
        verdict |= {"chosen": None, "tied": ["lamb", "naive"]}
        (folder / "verdict.json").write_text(json.dumps(verdict))
    page, runs = (client_of(tmp_path).get(path).text for path in ("/run/converge", "/"))
    assert ("lamb, naive overlap over 2 seeds: a tie." in page) is tied
    assert ("--seeds 4" in page) is tied
    assert (">highest mean<" in page) is tied
    assert (">best technique<" in page) is not tied
    assert ("accuracy 73.5 %, a tie of lamb, naive" in runs) is tied, "the list names them all"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("not confirmed: the budget ended", "the budget ended before that could be repeated"),
        ("not confirmed by the last check (1.01×)", "the last check did not repeat that"),
    ],
)
def test_a_tune_that_confirms_nothing_says_why_on_the_terminal_the_page_and_the_list(tmp_path, client_of, reason, why):
    """A search that was cut short has made no last check, and there may be something to gain."""
    row = Row(mod="resident", before=976.0, after=1375.0, gain=1.41, code=Reason.NOT_CONFIRMED, reason=reason)
    verdict = Tuned(
        baseline=Speed(samples_per_s=989.0, low=950.0, high=1010.0, batch=64, memory=0, step={}, trials=3),
        mods=[row], cut_short=True,
        final=Final(mods=[], samples_per_s=989.0, gain=1.0, gain_low=1.0, gain_high=1.0, pairs=0),
    )  # fmt: skip
    told = f"o confirmed gain: resident gained 1.41× in a first trial, and {why}"
    assert told in printed(tune.report(verdict))
    folder = make_tune(tmp_path / "tune")
    (folder / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    page, runs = (client_of(tmp_path).get(path).text for path in ("/run/tune", "/"))
    assert told in page
    assert "Nothing to gain" not in page
    assert "no confirmed gain" in runs
