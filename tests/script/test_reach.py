"""Which values the code of a module can reach."""

from __future__ import annotations

import torch
from torch import nn

from paceline.script.proof.reach import Reach, variables

n = 0  # a loop's counter, as scripts have them
scale = 1.0
settings = {"width": 2}


def widened(x: torch.Tensor) -> torch.Tensor:
    return x * settings["width"]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return widened(self.n(x)) * scale


def test_an_attribute_is_no_variable_of_the_same_name() -> None:
    """`self.n` beside a counter `n` of the script: each call was compared with its proof, and each step took twice as
    long."""
    module = Normed()
    found = {name for where, _, name, _ in variables(module, Reach(module)) if where == __name__}
    assert {"scale", "settings", "widened"} <= found
    assert "n" not in found
