"""What `import paceline` promises. A name that is added or taken away is a decision: change it here, too."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

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
    "critical_batch",
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
