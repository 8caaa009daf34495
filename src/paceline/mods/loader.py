"""Loader: samples are loaded by processes of their own, ahead of the step that needs them.

Changes: nothing but when samples are loaded: the same ones in the same order. Applies to a DataLoader over a map-style
dataset that loads in the script's own process; on a GPU batches are pinned, too. Can break: datasets that draw random
numbers (augmentation), which are other ones in the loader's processes; datasets that cannot be pickled or that keep
count; and speed where loading is cheap.

By hand:

    DataLoader(dataset, batch_size, shuffle=True, num_workers=2, pin_memory=True)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset

from paceline.script.stage import Stage

AHEAD = 2  # batches of each process


class Mod:
    """Changes a loader before it is first iterated. One that has processes of its own is left alone."""

    def __init__(self, value: str) -> None:
        self.processes = int(value)

    def on_stage(self, stage: Stage) -> None:
        stage.subscribe(self)

    def on_loader(self, loader: Any) -> None:
        if loader.num_workers or isinstance(loader.dataset, IterableDataset):
            return
        loader.num_workers, loader.prefetch_factor = self.processes, AHEAD
        loader.pin_memory = loader.pin_memory or torch.cuda.is_available()
        # Not persistent: then torch draws no seed for the processes at a new epoch, and the order of samples changes.
