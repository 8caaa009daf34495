"""What was asked for, checked where it is written: a mistake is told there, and not when a loop has begun."""

from __future__ import annotations

from typing import Any, Literal

from paceline.data.error_policy import POLICIES
from paceline.data.planning.stages import How, Kind
from paceline.errors import UsageError
from paceline.script.seams.api import current

Number = int | Literal["auto"]
KINDS = ("auto", "here", "threads", "processes")


def at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or number < least):
            raise UsageError(f"Asked for {name}={number!r}.", advice=f"Give a whole number from {least} on.")


def checked_policy(policy: str) -> Any:
    if policy not in POLICIES:
        raise UsageError(f"Asked for on_error={policy!r}.", advice=f"It takes {', '.join(map(repr, POLICIES))}.")
    return policy


def how(parallel: Number, kind: Kind, deterministic: bool) -> How:
    if kind not in KINDS:
        raise UsageError(f"Asked for kind={kind!r}.", advice=f"It takes {', '.join(map(repr, KINDS))}.")
    number = None if parallel == "auto" else parallel
    at_least(1, parallel=number)
    return How(parallel=number, kind=kind, deterministic=deterministic)


def runs_as_one() -> bool:
    """Whether other workers run the same lines and must see the same batches: under `paceline run`, unless the script
    distributes itself."""
    stage = current()
    return stage is not None and stage.group.world > 1 and not stage.aside


def grows() -> int:
    """How many batches of the script's make one of the run's: with `--batch scale` one for each worker."""
    stage = current()
    return stage.group.world if stage is not None and runs_as_one() and stage.run.batch == "scale" else 1


def workers() -> tuple[int, int]:
    """This worker's number among those that run as one, and how many they are."""
    stage = current()
    return (stage.group.rank, stage.group.world) if stage is not None and runs_as_one() else (0, 1)


def place() -> tuple[int, int]:
    """This worker's rank, and how many there are. A script that Paceline distributes is one process to itself: its part
    is everything, on every worker."""
    if runs_as_one():
        return 0, 1
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    from paceline.settings import from_environment

    settings = from_environment()
    return settings.rank, settings.world
