"""View: `view=slice` lets each worker of the script see only its slice of a training batch, as under DDP.

Changes: the numbers that a script computes from a training batch. The loader hands out slices, and nothing of an output
is sent. Losses that are means over rows, and gradients, are those of the batch; other numbers (training accuracy) are
of worker 0's slice. Evaluation sees whole batches. Applies to scripts with a DataLoader, on several workers. Can break:
losses that are sums, means over tokens, or compare samples with each other.

By hand:

    sampler = DistributedSampler(dataset)    # and `sampler.set_epoch(epoch)`, under DDP
"""

from __future__ import annotations

from paceline.script.seams.stage import Stage


class Mod:
    """The loader hands out slices. The notice comes with the first of them."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        stage.views.is_sliced = True
        if stage.group.world == 1:
            stage.pulse.not_in_force("view=slice", "there is one worker.")
