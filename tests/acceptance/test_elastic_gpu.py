"""Elastic runs on a GPU that the workers share: a killed worker changes no number."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain import PlainPython
from test_elastic import AT_A_PLACE, NONE, TRAIN, check
from typist import Typist

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
ON_GPU = (
    TRAIN.replace("model = Net()", "model = Net().cuda()")
    .replace("        out = model(x)", "        x, y = x.cuda(), y.cuda()\n        out = model(x)")
    .replace("model(data.tensors[0]), data.tensors[1])", "model(data.tensors[0].cuda()), data.tensors[1].cuda())")
)


@pytest.fixture(scope="module")
def undisturbed(plain: PlainPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(ON_GPU.format(fault=NONE))
    return plain.printed(folder, "train.py")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["forward", "loss", "backward", "before the step", "evaluation", "saving"])
def test_a_killed_worker_changes_no_number(
    typist: Typist, tmp_path: Path, undisturbed: str, place: str, rank: int
) -> None:
    fault = AT_A_PLACE.format(place=place, ranks=[rank], times=1 if place in ("evaluation", "saving") else 4)
    check(typist, tmp_path, fault, undisturbed, script=ON_GPU)
