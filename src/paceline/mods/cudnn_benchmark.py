"""cuDNN's benchmark mode: at the first sight of a shape its algorithms are tried, and the fastest is kept.

Changes: which algorithm adds up a convolution, hence the last digits. Applies to convolutions on GPUs. Can break:
reproducibility from run to run; and it costs time where shapes change often.

By hand:

    torch.backends.cudnn.benchmark = True
"""

from __future__ import annotations

import torch

from paceline.script.seams.stage import Stage


class Mod:
    """Set before the script begins; a script that sets it itself has the last word."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        torch.backends.cudnn.benchmark = True
