"""Random: `random=own` lets each worker draw its own random numbers inside the model, for its rows only.

Changes: the random numbers of dropout, noise and sampling inside a model, not their distribution. Without the mod, each
worker draws for the whole batch and keeps its rows, so that the numbers are those of one process; with it, drawing
costs 1/N. The script's own stream does not advance inside the model, so later draws (the next epoch's shuffle) differ
as well. Applies to models that draw random numbers, on several workers. Can break: nothing but the same numbers.

By hand:

    torch.manual_seed(seed + rank)    # before the first forward, under DDP
"""

from __future__ import annotations

from paceline.script.seams.stage import Stage


class Mod:
    """Switches the draws of one process off. The notice comes with the first call that draws."""

    def __init__(self, value: str) -> None:
        pass

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.views.own_draws = True
        if stage.group.world == 1:
            stage.pulse.not_in_force("random=own", "there is one worker.")

    def idle(self) -> str:
        views = self.stage.views
        return "" if views.drew or self.stage.group.world == 1 else "no model of the script draws random numbers."
