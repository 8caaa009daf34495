"""The canary finds nothing in this torch, and finds a torch that bypasses a patch or draws otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from staged import staged

from paceline import torch_private
from paceline.comm.group import Group
from paceline.errors import LaunchError
from paceline.launch import Zygote, launch
from paceline.launch.zygote.torch_check import TorchCheck
from paceline.script import canary
from paceline.script.draws import dropout
from paceline.script.patches import PATCHED
from paceline.settings import RunSettings


@pytest.fixture(autouse=True)
def same_stream() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def test_this_torch_is_as_it_must_be() -> None:
    assert canary.look() == []


def unknown_places(group: Group) -> list[str]:
    known = canary.BY_NAME | {(owner, name) for _, owner, name, _ in canary.ways()}
    with staged(group):
        # numpy's functions are called by the lines of scripts.
        found = [place for place in PATCHED if place not in known and place[0] is not np.random]
    return [f"{owner}.{name}" for owner, name in found]


def test_every_patched_place_is_known(pool: Pools) -> None:
    assert pool(2).run(unknown_places) == [[], []]
    assert PATCHED == []


def test_a_bypassed_patch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = torch_private.bindings.dropout

    def fused(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return inside(x, p, training)

    monkeypatch.setattr(F, "dropout", fused)
    assert "nn.Dropout does not call torch._VF.dropout" in canary.look()


def test_a_torch_that_draws_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is Paceline that draws otherwise: a mask of what is dropped instead of what is kept."""
    plain = dropout.plain_bernoulli_
    monkeypatch.setattr(dropout, "plain_bernoulli_", lambda whole, p: plain(whole, 1 - p))
    found = canary.look()
    assert any(text.startswith("F.dropout draws other numbers") for text in found), found


def test_a_private_attribute_that_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "OF_MODULES", ("_forward_hooks", "_gone"))
    assert canary.look() == ["BatchNorm1d has no attribute _gone"]


@pytest.mark.parametrize(("found", "verdict"), [([], ""), (["a", "b"], f"with torch {torch.__version__}: a; b")])
def test_the_verdict_comes_from_another_process(found: Any, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "look", lambda: found)
    assert TorchCheck().verdict().endswith(verdict)
    assert bool(TorchCheck().verdict()) == bool(found)


def test_no_script_runs_with_a_torch_that_bypasses_a_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose F.dropout draws in a function of its own."""
    (tmp_path / "sitecustomize.py").write_text(
        "import torch.nn.functional as F, torch\n"
        "inside = torch._VF.dropout\n"
        "F.dropout = lambda x, p=0.5, training=True, inplace=False: inside(x, p, training)\n"
    )
    (tmp_path / "train.py").write_text("print('ran')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with Zygote.start() as zygote:
        settings = RunSettings(script=str(tmp_path / "train.py"), workers=2)
        with pytest.raises(LaunchError, match=r"nn\.Dropout does not call torch\._VF\.dropout") as raised:
            launch(settings, zygote=zygote, record=tmp_path / "record", on_event=lambda event: None)
    assert "-n 1" in raised.value.advice
