"""Checkpoints from and to plain torch files and DCP, without unpickling anything."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader

import paceline
from paceline.checkpoint.convert import convert
from paceline.errors import CheckpointError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # DCP, in a single process


def trained() -> tuple[nn.Module, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()
    optimizer = torch.optim.AdamW([{"params": [model[0].weight]}, {"params": [model[0].bias], "lr": 0.1}], lr=0.01)
    model(torch.arange(12, dtype=torch.float64).view(4, 3) ** 2).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module, Any]:
    model, optimizer = trained()
    paceline.save(tmp_path / "ck", model, optimizer, DataLoader([1, 2]), step=4, extra={"best": 0.5, "seen": (1, 2)})
    return tmp_path, model, optimizer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_to_a_torch_file_and_back(saved: Any) -> None:
    folder, model, optimizer = saved
    done = convert(folder / "ck", folder / "all.pt")
    assert (done.source, done.target, done.left_out) == ("paceline", "torch", ["loader"])
    plain = torch.load(folder / "all.pt", weights_only=True)
    assert plain.keys() == {"model", "optimizer", "step", "extra"}
    assert same(plain["model"], dict(model.state_dict()))
    assert same(plain["optimizer"], optimizer.state_dict())
    convert(folder / "all.pt", folder / "back")
    other, resumed = trained()
    loaded = paceline.load(folder / "back", other, resumed)
    assert (loaded.step, loaded.extra) == (4, {"best": 0.5, "seen": (1, 2)})
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(resumed.state_dict(), optimizer.state_dict())


def test_one_part_is_a_bare_state_dict_both_ways(saved: Any) -> None:
    folder, model, _ = saved
    convert(folder / "ck", folder / "model.pth", part="model")
    other, _ = trained()
    other.load_state_dict(torch.load(folder / "model.pth", weights_only=True))
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    torch.save(model.state_dict(), folder / "own.pt")
    convert(folder / "own.pt", folder / "again")
    paceline.load(folder / "again", trained()[0])


def test_the_usual_names_of_a_torch_file_are_known(saved: Any) -> None:
    folder, model, optimizer = saved
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict(), "epoch": 3}
    torch.save(state, folder / "usual.pt")
    convert(folder / "usual.pt", folder / "usual")
    assert paceline.load(folder / "usual", *trained()).extra == {"epoch": 3}


def test_to_dcp_and_back(saved: Any) -> None:
    folder, model, optimizer = saved
    convert(folder / "ck", folder / "dcp", to="dcp")
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
    dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True)  # torch's own reader
    assert same(state["model"], dict(model.state_dict()))
    convert(folder / "dcp", folder / "back")
    other, resumed = trained()
    loaded = paceline.load(folder / "back", other, resumed)
    assert (loaded.step, loaded.extra["best"]) == (4, 0.5)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(resumed.state_dict(), optimizer.state_dict())
    convert(folder / "dcp", folder / "direct.pt")


def test_a_dcp_folder_of_torchs_own(tmp_path: Path) -> None:
    model, _ = trained()
    dcp.save({"model": model.state_dict(), "epoch": 2}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    convert(tmp_path / "dcp", tmp_path / "ck")
    other, _ = trained()
    assert paceline.load(tmp_path / "ck", other).extra == {"epoch": 2}
    assert same(dict(other.state_dict()), dict(model.state_dict()))


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Bomb()}, "bomb.pt")
    with pytest.raises(CheckpointError, match=r"bomb\.pt holds objects"):
        convert(Path("bomb.pt"), Path("ck"))
    dcp.save({"a": torch.zeros(2), "b": Bomb()}, checkpoint_id="inside", no_dist=True)
    with pytest.raises(CheckpointError, match="only unpickling"):
        convert(Path("inside"), Path("ck"))
    Path("table").mkdir()
    Path("table/.metadata").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError, match=r"refers to posix\.mkdir"):
        convert(Path("table"), Path("ck"))
    assert not Path("exploded").exists()
    assert not Path("ck").exists()


def test_what_cannot_be_converted_is_said_so(saved: Any) -> None:
    folder = saved[0]
    with pytest.raises(UsageError, match="Paceline checkpoint already"):
        convert(folder / "ck", folder / "other")
    with pytest.raises(UsageError, match="--part models is not in"):
        convert(folder / "ck", folder / "x.pt", part="models")
    (folder / "x.pt").write_bytes(b"no torch file")
    with pytest.raises(UsageError, match="exists already"):
        convert(folder / "ck", folder / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt"):
        convert(folder / "x.pt", folder / "new")
