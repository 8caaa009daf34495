"""Reports mods that the user asked for and that do nothing in this script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.script.seams.stage import Stage


class InForce:
    """Asks each mod that has a method `idle` after the first step, and again at the end of the script: why it does
    nothing, or an empty string. A mod that finds out in between reports it itself, with `pulse.not_in_force`."""

    def __init__(self, stage: Stage, mods: Mapping[str, Any]) -> None:
        self.stage = stage
        self._asked = {typed: mod for typed, mod in mods.items() if hasattr(mod, "idle")}
        self._begun = False

    def after_step(self, optimizer: Any) -> None:
        if not self._begun:
            self._begun = True
            self._ask()

    def on_end(self) -> None:
        if self._begun:
            self._ask()

    def _ask(self) -> None:
        for typed, mod in list(self._asked.items()):
            if why := mod.idle():
                del self._asked[typed]
                self.stage.pulse.not_in_force(typed, why)
