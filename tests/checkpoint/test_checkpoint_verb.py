"""`paceline checkpoint`, as a person types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paceline
from paceline.cli.app import command_line


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(3, 4)
    paceline.save("ck", model, torch.optim.SGD(model.parameters(), 0.1), step=12, extra={"best": 0.5})
    return tmp_path


def test_show_says_what_is_in_it_and_who_saved_it(saved: Path, capsys: Any) -> None:
    assert command_line(["checkpoint", "show", "ck", "--tensors"]) == 0
    out = capsys.readouterr().out
    for part in ("step 12, saved", f"torch {torch.__version__}", "strategy none, 1 worker", "Linear", "SGD", "4 × 3"):
        assert part in out
    assert command_line(["checkpoint", "show", "ck", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verb"], told["step"], told["tensors"]["model/bias"]["shape"]) == ("checkpoint show", 12, [4])


def test_verify_names_the_damaged_file(saved: Path, capsys: Any) -> None:
    assert command_line(["checkpoint", "verify", "ck"]) == 0
    assert "1 file" in (out := capsys.readouterr().out)
    assert "all intact" in out
    (file,) = Path("ck").glob("tensors-*/*")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert command_line(["checkpoint", "verify", "ck"]) == 1
    assert f"! {file} does not have the content that was written" in capsys.readouterr().out
    assert command_line(["checkpoint", "verify", "ck", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["intact"] is False
    file.unlink()
    assert command_line(["checkpoint", "verify", "ck"]) == 1
    assert "is missing" in capsys.readouterr().out


def test_convert_says_how_to_read_the_result(saved: Path, capsys: Any) -> None:
    assert command_line(["checkpoint", "convert", "ck", "model.pt", "--part", "model"]) == 0
    assert 'torch.load("model.pt", weights_only=True)' in capsys.readouterr().out
    nn.Linear(3, 4).load_state_dict(torch.load("model.pt", weights_only=True))
    assert command_line(["checkpoint", "convert", "model.pt", "again", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "torch"


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_mistake_is_two_lines(saved: Path, capsys: Any, verb: str) -> None:
    assert command_line(["checkpoint", verb, "nothing"]) == 1
    assert capsys.readouterr().err == (
        "paceline: nothing does not exist.\n  Type the path that was given to paceline.save.\n"
    )


def test_show_and_verify_import_no_torch(saved: Path) -> None:
    code = (
        "import sys; from paceline.cli.app import command_line;"
        "[command_line(['checkpoint', verb, 'ck']) for verb in ('show', 'verify')]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
