"""Batch norm: `bn=local` computes batch norm over each worker's slice, as DDP does.

Changes: the mathematics. Without the mod, batch norm sees the whole batch, and the numbers are those of one process.
With it, each slice is normalised by its own mean and variance, and no statistics are exchanged: one exchange per layer
less, forward and backward. Running statistics are those of the slices, averaged before they are used or saved. Applies
to models with batch norm on several workers. Can break: accuracy, if a worker's slice is small; a slice of one row
raises torch's error "Expected more than 1 value per channel".

By hand:

    strategy = paceline.Mirrored()    # nn.SyncBatchNorm is the exact form, nn.BatchNorm under DDP the local one
"""

from __future__ import annotations

from torch import nn

from paceline.script.seams.stage import Stage
from paceline.torch_private import BatchNorm


class Mod:
    """Switches the exchange of statistics off."""

    def __init__(self, value: str) -> None:
        self._met = False

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.views.norms_see_batch = False
        if stage.group.world == 1:
            stage.pulse.not_in_force("bn=local", "there is one worker.")
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if self.stage.group.world > 1 and any(isinstance(m, BatchNorm) for m in module.modules()):
            self._met = True
            self.stage.pulse.notice(
                "bn=local: batch norm sees each worker's slice, as under DDP, so numbers differ from one process."
            )

    def idle(self) -> str:
        return "" if self._met or self.stage.group.world == 1 else "no model of the script has a batch norm."
