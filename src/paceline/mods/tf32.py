"""TF32: float32 matrix products and convolutions on tensor cores.

Changes: inputs of a product are rounded to 10 bits of mantissa, sums stay float32. Applies to GPUs from Ampere on, and
has no effect on other devices. Can break: code that depends on the last digits (ill-conditioned solves, finite
differences).

By hand:

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
"""

from __future__ import annotations

import torch

from paceline.script.seams.stage import Stage


class Mod:
    """Sets the flags before the script begins; a script's own setting overrides them."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        if not torch.cuda.is_available():
            stage.pulse.not_in_force("tf32", "there is no GPU.")
