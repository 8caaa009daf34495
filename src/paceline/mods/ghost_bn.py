"""Ghost batch norm: batch norms normalise over groups (ghosts) of N samples, however large the batch.

Changes: the mathematics: each N consecutive samples are normalised by their own mean and variance; running statistics,
and so evaluation, use the whole batch. Applies to nn.BatchNorm1d, 2d and 3d in any model of the script; modules and
parameters stay the same objects. With several workers, ghosts are parts of each worker's slice. A batch smaller than a
ghost is one ghost. Can break: scripts that compare the class of a batch norm.

By hand:

    model = paceline.ghost(model, 32)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from paceline.converge.ghost_bn.module import KINDS, ghost
from paceline.errors import ScriptError
from paceline.script.seams.stage import Stage
from paceline.torch_private import BatchNorm


class Mod:
    """Changes models before their first call."""

    def __init__(self, value: str) -> None:
        self.size = int(value)
        self._changed = self._seen = False
        self._delivered = 0
        self._others: set[str] = set()

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.views.norms_see_batch = False  # running statistics are those of a worker's ghosts
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        norms = [child for child in module.modules() if isinstance(child, BatchNorm)]
        self._others |= {type(norm).__name__ for norm in norms if not isinstance(norm, tuple(KINDS))}
        if any(type(norm) in KINDS for norm in norms):
            ghost(module, self.size)
            self._changed = True

    def on_batch(self, batch: Any) -> None:
        self._delivered = self.stage.views.batch_size(batch)

    def before_forward(self, module: nn.Module) -> None:
        if self._seen or not self._changed or not (torch.is_grad_enabled() and module.training):
            return
        self._seen = True  # only the first batch counts: the last one of an epoch may have any size
        rows = (self._delivered or self.stage.views.rows) // self.stage.group.world
        if 0 < rows < self.size:
            self.stage.pulse.notice(
                f"ghost_bn={self.size}: a worker's batch has {rows} samples, fewer than a ghost: batch norm sees all "
                "of them, as without the mod."
            )

    def before_step(self, optimizer: Any) -> None:
        if not self._changed and not self.stage.aside:
            found = f"only {', '.join(sorted(self._others))}" if self._others else "no batch norm"
            raise ScriptError(
                f"--mod ghost_bn={self.size}: the script's models have {found}.",
                advice="Leave the mod out: other norms (layer, group) do not depend on the batch.",
            )
