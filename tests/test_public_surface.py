"""What `import paceline` promises. A name that is added or taken away is a decision: change it here, too."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_overloads

import pytest

import paceline
from paceline.errors import PacelineError
from paceline.script.seams.stage import SEAMS

NAMES = [
    "CentralStorage",
    "Elastic",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "LAMB",
    "LARS",
    "Mesh",
    "Mirrored",
    "OneDevice",
    "PacelineError",
    "ParameterServer",
    "Pipeline",
    "ScaledRate",
    "Sharded",
    "Zero1",
    "__version__",
    "checkpoint",
    "critical_batch",
    "data",
    "ghost",
    "load",
    "log",
    "no_decay",
    "predict",
    "save",
]


def test_the_public_names() -> None:
    assert sorted(paceline.__all__) == NAMES
    for name in NAMES:
        assert getattr(paceline, name) is not None


def test_names_are_those_of_their_home() -> None:
    from paceline.strategies.mirrored import Mirrored

    assert paceline.Mirrored is Mirrored
    assert paceline.PacelineError is PacelineError


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Mirored'"):
        paceline.Mirored  # noqa: B018


def test_importing_paceline_imports_no_torch() -> None:
    code = "import sys, paceline; paceline.PacelineError; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_star_imports_work() -> None:
    names: dict[str, Any] = {}
    exec("from paceline import *", names)
    assert (names["Mirrored"].name, names["PacelineError"]) == ("mirrored", PacelineError)


def test_the_version_is_one() -> None:
    assert all(part.isdigit() for part in paceline.__version__.split(".")[:2])


def test_the_seams_are_those_of_the_design() -> None:
    assert SEAMS == (
        "on_optimizer",
        "on_model",
        "on_loader",
        "on_batch",
        "before_forward",
        "after_forward",
        "before_backward",
        "after_backward",
        "backward_raised",
        "on_membership",
        "backward_again",
        "before_step",
        "after_step",
        "on_save",
        "on_end",
    )


def test_dir_lists_public_names_only() -> None:
    assert dir(paceline) == NAMES


def test_packages_are_imported_at_their_first_use() -> None:
    code = """
import sys, paceline
assert not {"torch", "paceline.data", "paceline.checkpoint"} & set(sys.modules)
assert paceline.data.__name__ == "paceline.data"
assert callable(paceline.checkpoint.wait)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


STRATEGIES = ("CentralStorage", "Mesh", "Mirrored", "OneDevice", "ParameterServer", "Pipeline", "Sharded", "Zero1")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_says_what_it_is_when_to_take_it_and_what_it_costs(name: str) -> None:
    told = " ".join((getattr(paceline, name).__doc__ or "").split())
    assert "Take it " in told or "The first choice " in told
    assert "Costs " in told


def test_a_strategy_is_shown_as_it_was_made() -> None:
    assert repr(paceline.Mirrored()) == "paceline.Mirrored()"
    assert repr(paceline.Sharded(offload=True, replicas=2)) == "paceline.Sharded(offload=True, replicas=2)"
    assert repr(paceline.Pipeline(4, chunks=8)) == "paceline.Pipeline(4, chunks=8)"
    assert repr(paceline.Mesh(data=2, model=2)) == "paceline.Mesh(data=2, model=2)"


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(paceline.__file__).parent / "py.typed").is_file()
    for strategy in (paceline.Mirrored, paceline.Pipeline):
        shown = [len(inspect.signature(one).parameters) - 1 for one in get_overloads(strategy.distribute)]
        assert shown[:4] == [1, 2, 3, 4]


USER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

model: nn.Linear = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
model, optimizer, loader = paceline.Mirrored().distribute(model, optimizer, loader)
weight: int = model.in_features
alone: nn.Linear = paceline.Sharded(replicas=1).distribute(model)
paceline.checkpoint.wait()
reveal_type(paceline.Pipeline().distribute(model, optimizer))
"""


@pytest.mark.slow
def test_a_users_script_passes_mypy_strict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "tuple[torch.nn.modules.linear.Linear, torch.optim.sgd.SGD]" in done.stdout
