"""OneDevice: everything on one device, as in plain Python. The baseline of every comparison."""

from __future__ import annotations

from paceline.strategies.base import BaseStrategy


class OneDevice(BaseStrategy):
    """Everything on one device.

    Take it as the baseline of a comparison, or to write a script that later gets another strategy. Costs nothing.
    """
