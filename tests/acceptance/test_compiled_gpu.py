"""Same numbers of a compiled GPT with dropout on a GPU, in every way in which models are compiled."""

from __future__ import annotations

import pytest
from corpus import FOLDER, difference
from test_same_numbers_gpu import OnGpu, gpu

__all__ = ["gpu"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
COMPILED = ("model", "dynamic", "in_place", "blocks", "function", "checkpoint")
MODES = (*COMPILED, "reduce-overhead", "max-autotune-no-cudagraphs", "eager", "eager_checkpoint")


EXACT = """import torch
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
"""
# A kernel of torch's own for each product is enough: dozens take minutes.
AUTOTUNED = """import torch._inductor.config
torch._inductor.config.test_configs.max_mm_configs = 1
"""


def check(gpu: OnGpu, name: str, tolerance: float, *arguments: str) -> None:
    first = EXACT + (AUTOTUNED if arguments[:1] == ("max-autotune-no-cudagraphs",) else "")
    (gpu.folder / "train.py").write_text(first + (FOLDER / f"{name}.py").read_text())
    expected = gpu.plain.printed(gpu.folder, gpu.folder / "train.py", *arguments)
    found = gpu.typist.type(gpu.folder, "run", "-n", "2", "--quiet", "train.py", *arguments)
    assert found.returncode == 0, found.stderr
    wrong = difference(expected, found.stdout, tolerance)
    assert not wrong, f"{wrong}\n{found.stderr}"
    assert "computed in slices" not in found.stderr
    assert "draws" not in found.stderr


@pytest.mark.parametrize("mode", MODES)
def test_a_gpt_with_dropout(mode: str, gpu: OnGpu) -> None:
    check(gpu, "compiled_gpt", 1e-4, mode)


@pytest.mark.parametrize("mode", ["eager", "model"])
def test_a_gpt_with_dropout_in_bf16(mode: str, gpu: OnGpu) -> None:
    """Attention by torch's flash kernel."""
    check(gpu, "compiled_gpt", 1e-2, mode, "bfloat16")


def test_several_ways_to_draw(gpu: OnGpu) -> None:
    check(gpu, "compiled_noise", 1e-4)
