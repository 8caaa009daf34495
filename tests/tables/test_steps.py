"""What the step records of all ranks say: odd steps, slow ranks, two runs."""

from __future__ import annotations

import random

import polars as pl
import pytest

from paceline.record.samples import GpuSample, Sample, WorkerSample
from paceline.record.schema import Step
from paceline.tables.devices import gpu_samples, host_samples, worker_samples
from paceline.tables.iterations import iterations, warm_up
from paceline.tables.records import Tables, steps_frame
from paceline.tables.stragglers import lags, stragglers
from paceline.tables.why_slower import difference

USUAL = {"data": 0.01, "forward": 0.03, "backward": 0.05, "communication": 0.01, "optimizer": 0.005, "other": 0.001}


def step(number: int, noise: float = 0.0, **changes: float) -> Step:
    parts = {**USUAL, "evaluation": 0.0, **{part: USUAL.get(part, 0.0) + more for part, more in changes.items()}}
    parts["forward"] += noise
    return Step(step=number, at=float(number), samples=64, total=sum(parts.values()), loss=1.0, **parts)


def run(ranks: int, steps: int, slow: dict[int, tuple[str, float, int]] | None = None, seed: int = 0) -> pl.DataFrame:
    """Ranks of equal speed, apart from `slow`: rank → part, how much longer, from which step on. Others wait for it."""
    draw = random.Random(seed)
    by_rank: dict[int, list[Step]] = {rank: [] for rank in range(ranks)}
    for number in range(1, steps + 1):
        first = 1.0 if number <= 3 else 0.0  # warm-up
        more = [0.0] * ranks
        for rank, (_, extra, since) in (slow or {}).items():
            more[rank] = extra if number >= since else 0.0
        for rank in range(ranks):
            part = (slow or {}).get(rank, ("data",))[0]
            waits = {"communication": max(more) - more[rank]}
            waits[part] = waits.get(part, 0.0) + more[rank]
            by_rank[rank].append(step(number, draw.gauss(0, 0.0005) + first, **waits))
    return steps_frame(by_rank)


@pytest.mark.parametrize("part", ["data", "forward", "backward", "optimizer", "other"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_slow_rank_is_named_with_its_cause(part, rank):
    table = stragglers(run(4, 60, {rank: (part, 0.03, 1)}))
    first = table.row(0, named=True)
    assert (first["rank"], first["slow"], first["cause"]) == (rank, True, part)
    assert first["behind"] == pytest.approx(0.03, rel=0.1)
    assert first["excess"] == pytest.approx(0.03, rel=0.1)
    assert table["slow"].to_list() == [True, False, False, False]


def test_since_when(tmp_path):
    first = stragglers(run(2, 100, {1: ("forward", 0.05, 70)})).row(0, named=True)
    assert (first["rank"], first["since"], first["cause"]) == (1, 70, "forward")
    assert first["behind"] == pytest.approx(0.05, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_equal_ranks_are_not_named(seed):
    table = stragglers(run(3, 50, seed=seed))
    assert table["since"].to_list() == [None] * 3
    assert not table["slow"].any()


def test_a_rank_that_was_slow_and_is_no_longer_is_not_named():
    early = run(3, 30, {1: ("data", 0.05, 1)})
    late = run(3, 60).filter(pl.col("step") > 30)
    assert not stragglers(pl.concat([early, late]))["slow"].any()


def test_lags_are_a_grid():
    table = lags(run(3, 20, {2: ("data", 0.02, 11)}))
    assert table.height == 60
    behind = table.filter(rank=2)["behind"].to_list()
    assert max(behind[4:10]) < 0.005
    assert min(behind[10:]) > 0.015


def test_one_rank_has_nobody_to_lag_behind():
    assert lags(run(1, 20)).height == stragglers(run(1, 20)).height == 0
    assert stragglers(steps_frame({})).height == 0


@pytest.mark.parametrize("part", ["data", "communication", "evaluation", "other"])
def test_an_odd_step_says_why(part):
    steps = [step(number, 1.0 if number <= 2 else 0.0) for number in range(1, 41)]
    steps[29] = step(30, **{part: 0.2})
    table = iterations(steps_frame({0: steps}))
    [odd] = table.filter("outlier").iter_rows(named=True)
    assert (odd["step"], odd["why"]) == (30, part)
    assert odd["excess"] == pytest.approx(0.2)
    assert table["warm_up"].sum() == warm_up(steps_frame({0: steps})) == 2


def test_steady_steps_have_no_outliers():
    assert not iterations(run(2, 80))["outlier"].any()


def test_two_runs_are_compared_part_by_part():
    def tables(**changes: float) -> Tables:
        steps = [step(number, **changes) for number in range(1, 30)]
        return Tables(folder=None, run=None, steps=steps_frame({0: steps}), paths=())

    table = difference(tables(), tables(data=-0.01, forward=0.03))
    rows = {row["part"]: row for row in table.iter_rows(named=True)}
    assert rows["data"]["change"] == pytest.approx(-0.01)
    assert rows["forward"]["ratio"] == pytest.approx(2.0)
    assert rows["evaluation"]["ratio"] is None
    assert rows["total"]["change"] == pytest.approx(0.02)


def test_samples_are_frames(tmp_path):
    import msgspec

    one = Sample(
        at=1.0,
        cpu=[0.5, 1.0],
        memory=7,
        memory_total=10,
        read=1.0,
        written=2.0,
        received=3.0,
        sent=4.0,
        workers=[WorkerSample(rank=0, cpu=1.5, memory=5, children=2)],
        gpus=[GpuSample(index=1, utilisation=0.5)],
    )
    text = msgspec.json.encode(one)
    (tmp_path / "devices.jsonl").write_bytes(text + b"\n" + text[:20])  # torn
    assert host_samples(tmp_path).row(0, named=True)["cpu"] == 0.75
    assert host_samples(tmp_path).height == 1
    assert gpu_samples(tmp_path).row(0, named=True)["memory"] is None
    assert worker_samples(tmp_path)["cpu"].to_list() == [1.5]
    assert host_samples(tmp_path / "absent").height == 0
