"""Emulate: N workers on the available devices, with N× batch and per-worker batch norm.

Changes: the mathematics, as N workers with `--batch scale` do: batches have N times as many samples, the learning rate
stays the same, and each batch norm sees one worker's samples (ghosts). Running statistics cover the whole batch, while
N real workers keep those of the first worker. Applies to scripts that train on a DataLoader. If the whole batch does
not fit in memory, add `accumulate=K`, where K divides N; on W workers, W must divide N. Can break: accuracy, which is
what the mod is there to show. Dropout draws other random numbers than N workers would.

By hand:

    loader = DataLoader(dataset, N * batch_size, shuffle=True)
    model = paceline.ghost(model, batch_size)
"""

from __future__ import annotations

from typing import Any

from torch import nn

from paceline.converge.ghost_bn.module import KINDS, ghost
from paceline.errors import UsageError
from paceline.mods import batch
from paceline.script.seams.stage import Stage
from paceline.torch_private import BatchNorm


class Mod(batch.Mod):
    """The mod `batch`, with ghost batch norm over each emulated worker's share of the batch."""

    def __init__(self, value: str) -> None:
        super().__init__(f"x{value}:none")
        self.workers = int(value)

    def on_stage(self, stage: Stage) -> None:
        asked = [int(mod.partition("=")[2]) for mod in stage.run.mods if mod.startswith("accumulate=")]
        shared = stage.group.world * (asked[0] if asked else 1)  # parts of a batch that are computed separately
        if self.workers % shared and shared % self.workers:
            parts = f"{stage.group.world} workers" + (f" in {asked[0]} micro-batches each" if asked else "")
            raise UsageError(
                f"--mod emulate={self.workers} cannot be divided evenly between {parts}.",
                advice=f"Choose workers and micro-batches whose product divides {self.workers}.",
            )
        if stage.run.batch == "scale":
            raise UsageError(
                "--batch scale cannot be used with --mod emulate: both multiply the batch.", advice="Leave --batch out."
            )
        self.ghosts = max(1, self.workers // shared)
        super().on_stage(stage)
        stage.views.norms_see_batch = False

    def on_model(self, module: nn.Module) -> None:
        """Batch norms see one emulated worker's samples."""
        norms = [child for child in module.modules() if type(child) in KINDS and isinstance(child, BatchNorm)]
        if self.ghosts == 1 or not norms:
            return
        if any(mod.startswith(("ghost_bn=", "large_batch=")) for mod in self.stage.run.mods):
            return  # these mods set the ghost size themselves
        ghost(module)
        for norm in norms:
            norm.register_forward_pre_hook(self._share)

    def _share(self, norm: Any, given: Any) -> None:
        norm.size = max(1, -(-given[0].shape[0] // self.ghosts))
