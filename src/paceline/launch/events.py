"""What `launch` tells its caller while the workers run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.record.schema import Step


@dataclass(frozen=True, slots=True)
class Output:
    """Rank 0 wrote something."""

    rank: int
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest step of each rank that has made one; a few times a second at most."""

    steps: dict[int, Step]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should read; never the same twice in a run."""

    text: str
    mod: str = ""  # the mod that tells of its own settings


@dataclass(frozen=True, slots=True)
class Stall:
    """Workers wait for others too long: the report, ready to print. Once per stall."""

    text: str


Event = Output | Progress | Notice | Stall
