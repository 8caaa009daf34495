"""Gradients of an output from which the model computes another one, where the script gets other tensors than those that
the model has computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Play = Callable[..., Any]
SCRIPT = """
import torch
from torch import nn

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.style, self.paint = nn.Linear(3, 4), nn.Linear(4, 6)

    def forward(self, z):
        style = self.style(z).tanh()
        return self.paint({of}).tanh(), style

torch.manual_seed(61)
model = Generator().double()
z, style_too = torch.randn(8, 3).double(), torch.randn(8, 4).double()
for step in range(2):
    picture, style = model(z)
    {asks}
    loss = picture.pow(2).mean() + style.abs().mean()
    loss.backward()
print(f"{{loss.item():.9f}}")
"""
RETAINS = "style.retain_grad()"
ASKS = ("style.register_hook(print)", RETAINS, "torch.autograd.grad(picture.sum(), style, retain_graph=True)")
UNDER = [("mesh(data=1,model=2)", None), ("pipeline(stages=2)", None), ("mirrored", 1)]


@pytest.mark.parametrize(("strategy", "elastic"), UNDER)
@pytest.mark.parametrize("asks", ASKS)
def test_a_gradient_of_which_a_part_would_be_missing_is_refused(
    play: Play, strategy: str, elastic: int | None, asks: str
) -> None:
    played = play(SCRIPT.format(of="style", asks=asks), strategy=strategy, elastic=elastic)
    assert played.outcome.exit_code == 1
    if elastic is None or "autograd" not in asks:
        assert "from which the model computes another output" in played.outcome.message


@pytest.mark.parametrize(("strategy", "elastic"), UNDER[:1] + UNDER[2:])
def test_that_of_an_output_of_its_own_is_not(play: Play, strategy: str, elastic: int | None) -> None:
    """A pipeline does not know which one is computed from which."""
    played = play(SCRIPT.format(of="style_too", asks=RETAINS), strategy=strategy, elastic=elastic)
    assert played.outcome.exit_code == 0, played.outcome.message
