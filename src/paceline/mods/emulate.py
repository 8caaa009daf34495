"""Emulate: what N workers of the script's batch would compute, on the devices at hand.

Changes: the mathematics, as N workers under `--batch scale` do: batches of N times as many samples, the learning rate
as it is, and batch norms that see one worker's samples each (ghosts). Running statistics are of the whole batch, where
N workers keep those of the first one. Applies to scripts that train on a DataLoader; where memory does not hold the
whole batch, with `accumulate=K`, K a divisor of N; on W workers, W a divisor of N. Can break: what a larger batch does
to the accuracy is what it is for. Dropout draws other random numbers than N workers would.

By hand:

    loader = DataLoader(dataset, N * batch_size, shuffle=True)
    model = paceline.ghost(model, batch_size)
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.converge.ghost_bn.module import KINDS, ghost
from paceline.errors import UsageError
from paceline.mods import batch
from paceline.script.seams.stage import Stage


class Mod(batch.Mod):
    """The mod `batch`, with ghosts of a worker's share of whatever batch comes."""

    def __init__(self, value: str) -> None:
        super().__init__(f"x{value}:none")
        self.workers = int(value)

    def on_stage(self, stage: Stage) -> None:
        asked = [int(mod.partition("=")[2]) for mod in stage.run.mods if mod.startswith("accumulate=")]
        shared = stage.group.world * (asked[0] if asked else 1)  # so many parts of a batch are computed by themselves
        if self.workers % shared and shared % self.workers:
            parts = f"{stage.group.world} workers" + (f" in {asked[0]} micro-batches each" if asked else "")
            raise UsageError(
                f"Asked to emulate {self.workers} workers on {parts}: their batches do not come out even.",
                advice=f"Take a divisor of {self.workers}.",
            )
        if stage.run.batch == "scale":
            raise UsageError("Asked to emulate workers, and for --batch scale.", advice="Leave --batch out.")
        self.ghosts = max(1, self.workers // shared)
        super().on_stage(stage)

    def on_model(self, module: nn.Module) -> None:
        """Batch norms see what a worker's would. --sync-bn asks for those that see the whole batch."""
        norms = [child for child in module.modules() if type(child) in KINDS and isinstance(child, _BatchNorm)]
        if self.stage.run.sync_bn or self.ghosts == 1 or not norms:
            return
        if any(mod.startswith(("ghost_bn=", "large_batch=")) for mod in self.stage.run.mods):
            return  # which says what they see
        ghost(module)
        for norm in norms:
            norm.register_forward_pre_hook(self._share)

    def _share(self, norm: Any, given: Any) -> None:
        norm.size = max(1, -(-given[0].shape[0] // self.ghosts))
