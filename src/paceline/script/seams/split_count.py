"""Notices a script in which nothing is split, and says so once."""

from __future__ import annotations

from paceline.comm.call_site import script_line
from paceline.script.state import StageState

UNSPLIT_ADVICE = (
    "Paceline splits the work where a module is called: write `model(x)` with a torch.nn.Module (not bare tensors, not "
    "inside a function under torch.compile: compile the model)."
)


class SplitCount:
    """Counts the backwards that crossed a sliced call, and those that did not."""

    def __init__(self, stage: StageState) -> None:
        self.stage = stage
        self._split = self._unsplit = 0
        self._is_told = False

    def count(self, split: bool) -> None:
        if split:
            self._split += 1
        elif self.stage.rows.world > 1 and not self.stage.run.whole:
            # One unsplit backward may be a separate penalty; two, without any split one, are the whole script.
            self._unsplit += 1
            if self._unsplit > 1 and not self._split:
                self._tell()

    def end(self) -> None:
        """The script has ended."""
        if self._unsplit and not self._split:
            self._tell()

    def _tell(self) -> None:
        """Nothing is split: every worker computes everything. The numbers are right, so the run goes on."""
        if self._is_told:
            return
        self._is_told = True
        views = self.stage.views
        reason, advice = f"The backward at {script_line()} crossed no module call that could be split. ", UNSPLIT_ADVICE
        if views.refusal is not None:  # the notice about the module has said the reason, and what helps
            reason = advice = ""
        elif views.unbatched is not None:
            reason, advice = f"{views.unbatched} ", ""
        world = self.stage.group.world
        views.warn(
            f"{reason}Nothing is split: every worker does all of the work, and {world} workers are no faster than one. "
            f"{advice}".rstrip()
        )
