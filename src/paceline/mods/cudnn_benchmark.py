"""cuDNN benchmark mode: for each new shape, cuDNN tries its convolution algorithms and keeps the fastest.

Changes: the algorithm of a convolution, hence the last digits. Applies to convolutions on GPUs. Can break:
reproducibility from run to run, and throughput if shapes change often.

By hand:

    torch.backends.cudnn.benchmark = True
"""

from __future__ import annotations

import torch

from paceline.script.seams.stage import Stage


class Mod:
    """Sets the flag before the script begins; a script's own setting overrides it."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        torch.backends.cudnn.benchmark = True
        if not torch.cuda.is_available():
            stage.pulse.not_in_force("cudnn_benchmark", "there is no GPU.")
