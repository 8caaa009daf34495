"""The events that `launch` passes to its caller while the workers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.record.schema import Step


@dataclass(frozen=True, slots=True)
class Output:
    """Rank 0 wrote to standard output or standard error."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest step of each rank that has made one. At most five events per second."""

    steps: dict[int, Step]


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the person at the terminal. No text comes twice in a run."""

    text: str
    mod: str = ""  # the mod that tells of its own settings


@dataclass(frozen=True, slots=True)
class Stall:
    """Workers have waited for other workers for too long. `text` is the report, ready to print. Once per stall."""

    text: str


@dataclass(frozen=True, slots=True)
class Asking:
    """Whether the script waits for standard input: somebody is at a prompt, and nothing may be drawn over it."""

    now: bool


Event = Output | Progress | Notice | Stall | Asking
