"""The base of all strategies: the Python API, for scripts that hand their objects over."""

from __future__ import annotations

from typing import Any

from paceline.script.seams.api import attach
from paceline.script.seams.strategy import Strategy


class BaseStrategy(Strategy):
    """A strategy that a script can make itself: `paceline.Mirrored().distribute(model, optimizer, loader)`."""

    def distribute(self, *objects: Any) -> Any:
        """Takes model, optimizer and loader (any number, in any order), and returns them distributed.

        Every worker calls it, with the same objects. Under `paceline run` everything is distributed already; under
        another launcher (torchrun) this connects the workers; alone it changes nothing.
        """
        attach(self, objects)
        return objects[0] if len(objects) == 1 else objects
