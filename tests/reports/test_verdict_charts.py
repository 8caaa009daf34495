"""Charts of tune, converge and bandwidth: every number of the verdict is in them, and both renderers take them."""

from __future__ import annotations

import msgspec
import pytest

from paceline.charts.browser import figure
from paceline.charts.svg import write_svg
from paceline.reports import bandwidth, converge, tune
from paceline.trials.bandwidth.verdict import CollectiveRate, PairRate
from paceline.trials.bandwidth.verdict import Verdict as Bandwidth
from paceline.trials.converge.series import ALONE, Row, Sharp, Spread
from paceline.trials.converge.series import Verdict as Converge
from paceline.trials.tune.verdict import Verdict as Tune

SPREAD = Spread(mean=0.8, low=0.7, high=0.9, seeds=2)


def takes(charts, path) -> None:
    write_svg(charts, path, title="train.py")
    assert "<svg" in path.read_text()
    assert [msgspec.json.encode(figure(chart)) for chart in charts]


def tuned(*rows, final=None) -> Tune:
    mods = [
        {"mod": mod, "before": before, "after": after, "gain": gain, "kept": kept}
        for mod, before, after, gain, kept in rows
    ]
    speed = {"samples_per_s": 100.0, "low": 99.0, "high": 101.0, "batch": 8, "memory": 1, "step": {}, "trials": 1}
    return msgspec.convert(
        {"baseline": speed, "mods": mods, "final": final, "noise": 0.01, "guard": None, "notes": [], "budget": 1.0,
         "spent": 1.0, "trials": 3, "cut_short": False, "problem": "", "interrupted": False},
        Tune,
    )  # fmt: skip


def test_tune_before_and_after_each_mod(tmp_path):
    final = {"mods": ["a"], "samples_per_s": 210.0, "gain": 2.1, "gain_low": 2.0, "gain_high": 2.2, "pairs": 3}
    rows = [("a", 100.0, 200.0, 2.0, True), ("b", 100.0, 90.0, 0.9, False), ("c", None, None, None, False)]
    [chart] = tune.charts(tuned(*rows, final=final))
    told = {bars.name: dict(zip(bars.y, bars.x, strict=True)) for bars in chart.series}
    assert told == {
        "before": {"together": 100, "a": 100, "b": 100},
        "together": {"together": 210},
        "after, kept": {"a": 200},
        "after, not kept": {"b": 90},
    }
    assert [(mark.y, mark.text) for mark in chart.marks] == [("together", "2.10×"), ("a", "2.00×"), ("b", "0.90×")]
    takes([chart], tmp_path / "tune.svg")
    assert tune.charts(tuned(rows[-1])) == []


def test_converge_means_bands_and_lines_between_solutions(tmp_path):
    sharp = Sharp(
        eigenvalue=1.0, settled=True, loss=0.1, rise=0.1, radius=0.1, line=[(0.0, 0.1), (0.5, 9.0), (1.0, None)]
    )
    rows = [
        Row(workers=1, technique=ALONE, mods=[], accuracy=SPREAD, curves=[[(1.0, 0.5), (2.0, 0.75)]]),
        Row(workers=8, technique="lamb", mods=[], accuracy=SPREAD, sharpness=sharp,
            curves=[[(1.0, 0.25), (2.0, 0.5)], [(1.0, 0.75), (2.0, 0.5), (3.0, 0.9)]]),
        Row(workers=8, technique="lars", mods=[], accuracy=SPREAD),
    ]  # fmt: skip
    verdict = Converge(workers=8, seeds=2, target=0.7, rows=rows, chosen="lamb")
    [accuracy] = converge.accuracy(verdict)
    alone, lamb, band = accuracy.series
    assert (alone.name, list(alone.y), alone.dash) == (ALONE, [0.5, 0.75], "dashed")
    assert (lamb.name, list(lamb.x), list(lamb.y)) == ("8 × lamb", [1, 2], [0.5, 0.5])
    assert (list(band.low), list(band.high)) == ([0.25, 0.5], [0.75, 0.5])
    assert band.colour == lamb.colour != alone.colour
    assert accuracy.marks[0].at == 0.7
    [lines] = converge.loss_lines(verdict)
    [line] = lines.series
    assert (list(line.x), list(line.y)) == ([0.0, 0.5], [0.1, 9.0])
    assert lines.y.kind == "log", "ninety times as high half way"
    takes([accuracy, lines], tmp_path / "converge.svg")
    nothing = Converge(workers=8, seeds=1, target=None, rows=rows[-1:], chosen=None)
    assert converge.accuracy(nothing) == converge.loss_lines(nothing) == []


def test_bandwidth_by_size_and_by_pair(tmp_path):
    collectives = [
        CollectiveRate(op=op, backend="gloo", algorithm="its own", workers=2, bytes=size, seconds=2e-3, low=1e-3,
                       high=4e-3, algbw=1.0, busbw=1.0, share=0.5)
        for op in ("all_reduce", "broadcast") for size in (1 << 20, 1 << 10)
    ]  # fmt: skip
    pairs = [
        PairRate(between="gpus", a=a, b=(a + 1) % 3, backend="cuda", direct=direct, bytes=1, gb_per_s=10.0 + a,
                 low=9.0, high=12.0, both_ways_gb_per_s=19.0, latency=2e-6)
        for direct in (True, False) for a in (0, 1, 2)
    ]  # fmt: skip
    empty: dict = {name: [] for name in ("copies", "copy_limits", "flags", "notes", "failures")}
    verdict = Bandwidth(workers=2, pairs=pairs, collectives=collectives, interrupted=False, **empty)
    curves, maps = bandwidth.curves(verdict), bandwidth.pair_maps(verdict)
    assert [chart.title for chart in curves] == ["all-reduce", "broadcast"]
    line = curves[0].series[0]
    assert (list(line.x), line.name) == ([1 << 10, 1 << 20], "gloo, 2 workers")
    assert (list(line.low), list(line.high)) == ([0.5] * 2, [2.0] * 2), "a slow round is a low rate"
    assert len(maps) == 6, "one way, both ways and latency, direct and not"
    assert len({chart.name for chart in maps}) == 6
    assert maps[0].series[0].cells == [[None, 10.0, None], [None, None, 11.0], [12.0, None, None]]
    assert [cell for row in maps[2].series[0].cells for cell in row if cell] == pytest.approx([2.0, 2.0, 2.0])
    two = Bandwidth(workers=2, pairs=pairs[:1], collectives=collectives, interrupted=False, **empty)
    assert bandwidth.pair_maps(two) == [], "between two ends there is one number"
    takes(curves, tmp_path / "collectives.svg")
    takes(maps, tmp_path / "pairs.svg")
