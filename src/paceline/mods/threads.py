"""Threads: how many each worker computes with.

Changes: how sums are cut up between threads, hence the last digits. Applies on CPUs. Can break: nothing; too many
threads for the cores are slow.

By hand:

    torch.set_num_threads(N)
"""

from __future__ import annotations

import torch

from paceline.script.stage import Stage


class Mod:
    """Set before the script begins; a script that sets it itself has the last word."""

    def __init__(self, value: str) -> None:
        self.threads = int(value)

    def on_stage(self, stage: Stage) -> None:
        torch.set_num_threads(self.threads)
