"""`paceline.log`: numbers by name in the record, of rank 0."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from staged import lone_group, staged

import paceline as pl
from paceline.comm.group import Group
from paceline.record.logged import logged_path, read_logged
from paceline.script.seams import api


@pytest.fixture(autouse=True)
def no_stage_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_stage", "_folder", "_writer"):
        monkeypatch.setattr(api, name, None)


def logging(group: Group, folder: Path) -> int:
    with staged(group) as stage:
        api.take_stage(stage, folder)
        for epoch in range(3):
            pl.log(accuracy=torch.tensor(0.5 + epoch / 10), loss=math.nan)
        return group.rank


def test_each_call_is_a_line(tmp_path: Path) -> None:
    logging(lone_group(), tmp_path)
    lines = read_logged(tmp_path)
    assert [line.numbers["accuracy"] for line in lines] == pytest.approx([0.5, 0.6, 0.7])
    assert [line.numbers["loss"] for line in lines] == [None] * 3
    with logged_path(tmp_path).open("ab") as file:
        file.write(b'{"step": 4, "at"')
    assert len(read_logged(tmp_path)) == 3, "a torn last line is left out"


def test_only_rank_0_writes(pool: Any, tmp_path: Path) -> None:
    assert pool(2).run(logging, tmp_path) == [0, 1]
    assert len(read_logged(tmp_path)) == 3


def test_without_a_run_nothing_happens(tmp_path: Path) -> None:
    pl.log(accuracy=0.5)
    assert read_logged(tmp_path) == []
