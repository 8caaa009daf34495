"""The kernels of ghost batch norm against plain operations in float64. On a GPU, or in Triton's interpreter:

TRITON_INTERPRET=1 python -m pytest tests/converge/test_fused_ghost.py
"""

from __future__ import annotations

import os

import pytest
import torch

from paceline.converge.ghost_bn.functional import ghost_norm
from paceline.converge.optimizers import tensor_tables

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

DEVICE = "cpu" if INTERPRETED else "cuda"
# Batch, channels, pixels …; of a ghost.
SHAPES = [
    ((32, 8, 4, 4), 8),
    ((21, 5, 3, 3), 8),
    ((40, 3, 33, 40), 16),
    ((17, 40), 8),
    ((13, 6, 7), 4),
    ((9, 4, 2, 3, 2), 4),
    ((6, 130, 2, 2), 100),
    ((300, 3, 1, 1), 2),
    ((5, 16, 32, 32), 1),
]


@pytest.mark.parametrize(("shape", "size"), SHAPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", [True, False])
def test_kernels_compute_the_formula(
    shape: tuple[int, ...], size: int, last: bool, dtype: torch.dtype, affine: bool
) -> None:
    if last and len(shape) not in (4, 5):
        pytest.skip("no such layout")
    torch.manual_seed(0)
    x = (torch.randn(shape, device=DEVICE) * 2 + 30).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d)
    check(x, size, affine)


@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_values_close_together_far_from_zero_keep_their_digits(shape: tuple[int, ...], size: int) -> None:
    torch.manual_seed(0)
    check(torch.randn(shape, device=DEVICE) * 0.1 + 300, size, True)


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_tables, "DEVICES", (DEVICE,))
    if INTERPRETED:
        from paceline.converge.ghost_bn import fused

        monkeypatch.setattr(fused, "_multiprocessors", lambda device: 8)


def check(x: torch.Tensor, size: int, affine: bool) -> None:
    shape, dtype = x.shape, x.dtype
    up = torch.randn(shape, device=DEVICE).to(dtype)  # not laid out as x is
    found = []
    for kind in (torch.float32, torch.float64):
        mine = (x if kind == torch.float32 else x.double()).detach().requires_grad_()
        torch.manual_seed(1)
        weight, bias = (torch.randn(shape[1], device=DEVICE).to(kind).requires_grad_() for _ in range(2))
        running = torch.zeros(shape[1], device=DEVICE, dtype=kind), torch.ones(shape[1], device=DEVICE, dtype=kind)
        y = ghost_norm(mine, weight if affine else None, bias if affine else None, (*running, 0.1), size=size, eps=1e-5)
        wanted = [mine, *((weight, bias) if affine else ())]
        found.append([y.detach(), *torch.autograd.grad(y, wanted, up.to(y.dtype)), *running])
    assert found[0][0].dtype == found[0][1].dtype == dtype
    assert found[0][0].stride() == x.stride()
    near = 2e-4 if dtype == torch.float32 else 0.03
    for number, (mine, its) in enumerate(zip(*found, strict=True)):
        scale = its.abs().max().clamp_min(1.0)
        tolerance = near if number < 2 else 5e-4
        torch.testing.assert_close(mine.double() / scale, its / scale, rtol=0, atol=tolerance)
