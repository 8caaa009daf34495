"""Starts, watches and stops workers. This package does not import torch in the launcher: only the zygote does."""

from paceline.launch.events import Event, Notice, Output, Progress, Stall
from paceline.launch.local import check, launch
from paceline.launch.zygote.handle import Zygote

__all__ = ["Event", "Notice", "Output", "Progress", "Stall", "Zygote", "check", "launch"]
