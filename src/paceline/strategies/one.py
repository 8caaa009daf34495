"""OneDevice: everything on one device, as in plain Python. The baseline of every comparison."""

from __future__ import annotations

from paceline.strategies.base import BaseStrategy


class OneDevice(BaseStrategy):
    """One worker, which has no peers."""
