"""TF32: products of float32 matrices and convolutions on tensor cores.

Changes: inputs of a product are rounded to 10 bits of mantissa, sums stay float32. Applies on GPUs from Ampere on;
elsewhere it does nothing. Can break: what depends on the last digits (ill-conditioned solves, finite differences).

By hand:

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
"""

from __future__ import annotations

import torch

from paceline.script.seams.stage import Stage


class Mod:
    """Set before the script begins; a script that sets it itself has the last word."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
