"""HOROVOD_AUTOTUNE finds the better values, tells all ranks, and stops."""

from __future__ import annotations

from pathlib import Path

import torch
from hvd_worlds import fresh

import paceline.horovod.torch as hvd
from paceline.horovod.engine.autotune import Autotuner
from paceline.horovod.engine.messages import Response
from paceline.settings import HorovodSettings


def test_the_values_with_most_bytes_per_second_are_kept(tmp_path: Path) -> None:
    now = 0.0
    log = tmp_path / "log.csv"
    tuner = Autotuner(HorovodSettings(autotune=True, autotune_log=str(log)), clock=lambda: now)
    told = tuner.apply(Response(1, b"", []))
    assert (told.fusion_threshold, told.cycle_time) == (128 << 20, 0.001)
    assert tuner.apply(Response(2, b"", [])).fusion_threshold == -1, "what the ranks know is not told again"
    seen = set()
    while not tuner.is_done:
        seen.add(tuner.choice)
        slow = abs(tuner.choice.fusion_threshold - (16 << 20)) / (16 << 20) + abs(tuner.choice.cycle_time - 0.005) * 100
        now += 0.05 + 0.01 * slow
        tuner.observe(1000)
        assert len(seen) < 30
    assert tuner.choice == (16 << 20, 0.005)
    assert tuner.apply(Response(3, b"", [])).fusion_threshold == 16 << 20
    lines = log.read_text().splitlines()
    assert len(lines) == len(seen) + 1
    assert lines[-1] == "# best: 16 MB, 5 ms"


def reduce_some(rank: int, size: int) -> float:
    for _ in range(30):
        result = hvd.allreduce(torch.ones(1000), name="x", op=hvd.Sum)
    return float(result[0])


def test_reductions_are_right_while_it_tunes() -> None:
    with fresh(2, HOROVOD_AUTOTUNE="1") as ranks:
        assert ranks.run(reduce_some) == [2.0, 2.0]
