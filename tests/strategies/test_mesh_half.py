"""Mesh in half precision: products in parts are rounded once, as in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from test_mesh import SmallGPT, on_mesh
from torch import nn

from paceline.strategies.mesh.half_products import half_type


def train(autocast: bool, gpt: bool) -> list[tuple[float, float]]:
    """Losses and gradient norms."""
    torch.manual_seed(1)
    mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Linear(32, 10))
    model = SmallGPT(tied=False, fused=True) if gpt else mlp
    x = torch.randint(0, 10, (16, 5)) if gpt else torch.randn(16, 5, 32)
    y = x if gpt else x[..., :10].argmax(-1)
    if not autocast:
        model.bfloat16()
        x = x if gpt else x.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(x)
        assert out.dtype is torch.bfloat16
        loss = F.cross_entropy(out.float().flatten(0, 1), y.flatten())
        loss.backward()
        seen.append((loss.item(), sum(p.grad.float().norm().item() for p in model.parameters())))
        optimizer.step()
    return seen


@pytest.mark.parametrize(("autocast", "gpt"), [(True, False), (True, True), (False, False)])
def test_numbers_in_half_precision(pool: Pools, autocast: bool, gpt: bool) -> None:
    """Parts that are rounded before their sum differ by 9e-5 to 7e-4 here; the order of a sum in float32 by 1e-7."""
    expected = train(autocast, gpt)
    for found in pool(2, "mesh").run(on_mesh, "mesh(data=1,model=2)", train, autocast, gpt):
        assert [n for pair in found for n in pair] == pytest.approx([n for pair in expected for n in pair], rel=2e-5)


def test_the_type_of_a_product_is_torchs() -> None:
    x = torch.ones(2, 2)
    assert half_type(x) is None
    assert half_type(x.bfloat16()) is torch.bfloat16
    with torch.autocast("cpu", dtype=torch.float16):
        for given in (x, x.bfloat16(), x.double()):
            found: Any = F.linear(given, given).dtype
            assert half_type(given) == (found if found is not torch.float64 else None)
