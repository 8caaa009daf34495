"""Pages of a series repeat the warnings and ties that the terminal shows."""

from __future__ import annotations

import json

import pytest
from verb_records import make_converge

from paceline.trials.bandwidth.verdict import CollectiveRate
from paceline.trials.bandwidth.verdict import Verdict as Bandwidth
from paceline.trials.core.same_numbers import SameNumbers
from paceline.trials.scale.series import Point as Scaled
from paceline.trials.scale.series import Verdict as Scaling
from paceline.trials.sweep.search import Ceiling, Point, Verdict, ties, unsteady
from paceline.view.pages.series.bandwidth import measuring
from paceline.view.pages.series.scale import scaling
from paceline.view.pages.series.sweep import sweeping
from paceline.view.ui.blocks import Note, Tiles


def notes(blocks) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, Note))


def tiles(blocks) -> dict[str, str]:
    return {tile.label: tile.value for block in blocks if isinstance(block, Tiles) for tile in block.tiles}


def test_a_sweep_in_noise_names_no_knee_and_no_best():
    points = [Point(batch=64 << k, fits=True, samples_per_s=100.0 + k, low=60.0, high=150.0) for k in range(3)]
    verdict = Verdict(
        workers=1, mods=[], own=64, points=points, knee=None, best=None, tied=ties(points), largest=256,
        ceiling=Ceiling.FLAT, why="flat", warning=unsteady(points),
    )  # fmt: skip
    blocks = sweeping(verdict, None)
    assert "64 to 256 samples a step are equally fast" in notes(blocks)
    assert "other processes keep this machine busy" in notes(blocks)
    assert tiles(blocks).keys() == {"largest that fits", "the script's own"}


def test_a_scale_without_one_worker_shows_no_efficiency():
    point = Scaled(
        workers=4, samples_per_s=100.0, low=90.0, high=140.0, speedup=1.0, speedup_low=1.0, speedup_high=1.0,
        efficiency=None, view="batch", step={}, rounds=2,
    )  # fmt: skip
    verdict = Scaling(
        mode="strong", base=4, rounds=2, steps=9, warm_up=1, points=[point], same_numbers=SameNumbers(checked=False),
        failures=[], warning="The rounds differ by up to 56 %.",
    )  # fmt: skip
    blocks = scaling(verdict, None)
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
    assert "The slowest round took 300 % longer" in notes(measuring(verdict))


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
    assert ("lamb, naive: a tie, accuracy 73.5 %" in runs) is tied, "the list names them all"
