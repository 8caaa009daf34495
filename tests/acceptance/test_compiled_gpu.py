"""Same numbers of a compiled GPT with dropout on a GPU, in every way in which models are compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from corpus import FOLDER, difference
from test_same_numbers_gpu import ON_GPU, on_workers, ran

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
COMPILED = ("model", "dynamic", "in_place", "blocks", "function", "checkpoint")
MODES = (*COMPILED, "reduce-overhead", "max-autotune-no-cudagraphs", "eager", "eager_checkpoint")


def check(name: str, folder: Path, tolerance: float, *arguments: str) -> None:
    script = folder / "train.py"
    script.write_text(ON_GPU + (FOLDER / f"{name}.py").read_text())
    expected = ran([sys.executable], script, arguments)
    assert expected.returncode == 0, expected.stderr
    found = on_workers(script, arguments=arguments)
    assert found.returncode == 0, found.stderr
    wrong = difference(expected.stdout, found.stdout, tolerance)
    assert not wrong, f"{wrong}\n{found.stderr}"
    assert "computed in slices" not in found.stderr
    assert "draws" not in found.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_gpt_with_dropout(mode: str, tmp_path: Path) -> None:
    check("compiled_gpt", tmp_path, 1e-4, mode)


@pytest.mark.parametrize("mode", ["eager", "model"])
def test_a_gpt_with_dropout_in_bf16(mode: str, tmp_path: Path) -> None:
    """Attention by torch's flash kernel."""
    check("compiled_gpt", tmp_path, 1e-2, mode, "bfloat16")


def test_several_ways_to_draw(tmp_path: Path) -> None:
    check("compiled_noise", tmp_path, 1e-4)
