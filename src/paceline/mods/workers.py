"""Workers: the number of workers that share the work.

Changes: the batch is computed in slices, hence the last digits. The mod is the same as `-n N`, in a form that `tune`
can try and keep. Applies to scripts whose model can be sliced, which is proven at the first batch. Can break: the cases
listed in docs/same-numbers.md.

By hand:

    strategy = paceline.Mirrored()
    model, optimizer, loader = strategy.distribute(model, optimizer, loader)
"""

from __future__ import annotations

from paceline.script.seams.stage import Stage


class Mod:
    """Does nothing in a worker: the launcher has already started N workers."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        pass
