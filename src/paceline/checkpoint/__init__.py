"""Checkpoints: saved under one strategy and number of workers, loaded under any other.

`paceline.save` and `paceline.load` live here; `paceline.checkpoint.wait` waits for an asynchronous save.
"""

from __future__ import annotations


def wait() -> None:
    """Waits until an asynchronous save is on the disk, and raises its error. Every worker calls it; without a save in
    flight it returns at once."""
    from paceline.checkpoint.background import finish
    from paceline.checkpoint.crew import this_crew

    finish(this_crew())
