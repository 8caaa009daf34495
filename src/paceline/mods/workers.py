"""Workers: how many processes share the work.

Changes: a batch is computed in slices, hence the last digits; batch norm sees its slice (`--sync-bn`: the batch). The
same as `-n N`, in the place where mods are tried and kept. Applies to scripts whose model can be sliced, which is
proven at the first batch. Can break: what docs/same-numbers.md says.

By hand:

    strategy = paceline.Mirrored()
    model, optimizer, loader = strategy.distribute(model, optimizer, loader)
"""

from __future__ import annotations

from paceline.script.seams.stage import Stage


class Mod:
    """Nothing is left to do in a worker: the launcher has started as many."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        pass
