"""Starts, watches and stops workers. Importing it imports no torch: only the zygote does that."""

from paceline.launch.events import Event, Notice, Output, Progress, Stall
from paceline.launch.local import check, launch
from paceline.launch.zygote.handle import Zygote

__all__ = ["Event", "Notice", "Output", "Progress", "Stall", "Zygote", "check", "launch"]
