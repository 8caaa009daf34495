"""Stages as the user wrote them: options only. `planner` turns stages into nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.data.error_policy import POLICIES, Policy
from paceline.errors import UsageError
from paceline.script.seams.api import current

Kind = Literal["auto", "here", "threads", "processes"]
Last = Literal["keep", "drop"]  # what happens to a smaller last batch
Read = Callable[[Any, int], Iterator[Sequence[Any]]]  # a unit's records from this number on, in chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a map or a batch runs; None and "auto" are tuned automatically."""

    parallel: int | None = None
    kind: Kind = "auto"
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class Shuffle:
    buffer: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Repeat:
    times: int | None


@dataclass(frozen=True, slots=True)
class ShuffleAndRepeat:
    buffer: int | None
    times: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Take:
    count: int


@dataclass(frozen=True, slots=True)
class Skip:
    count: int


@dataclass(frozen=True, slots=True)
class Map:
    function: Callable[..., Any]
    how: How
    on_error: Policy = "raise"
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    function: Callable[[Any], Any]
    on_error: Policy = "raise"


@dataclass(frozen=True, slots=True)
class Batch:
    size: int
    last: Last
    how: How
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Interleave:
    """`policed` makes the reader, given the `LostSamples` that handles unreadable records. `prefetch`: whether threads
    read ahead; None: if reading is slow."""

    policed: Callable[[Any], Read]
    cycle: int
    block: int
    prefetch: bool | None
    name: str


@dataclass(frozen=True, slots=True)
class Cache:
    folder: str | None


@dataclass(frozen=True, slots=True)
class Prefetch:
    depth: int | None


@dataclass(frozen=True, slots=True)
class To:
    device: str


Stage = Shuffle | Repeat | ShuffleAndRepeat | Take | Skip | Map | Filter | Batch | Interleave | Cache | Prefetch | To


# -- checks of options ------------------------------------------------------------------------------------------------


Number = int | Literal["auto"]
KINDS = ("auto", "here", "threads", "processes")


def at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or number < least):
            raise UsageError(
                f"{name}={number!r} is not a whole number of at least {least}.", advice=f"Type, for example: {name}=8"
            )


def checked_policy(policy: str) -> Any:
    if policy not in POLICIES:
        raise UsageError(f"on_error={policy!r} is not known.", advice=f"Choose from {', '.join(map(repr, POLICIES))}.")
    return policy


def how(parallel: Number, kind: Kind, deterministic: bool) -> How:
    if kind not in KINDS:
        raise UsageError(f"kind={kind!r} is not known.", advice=f"Choose from {', '.join(map(repr, KINDS))}.")
    number = None if parallel == "auto" else parallel
    at_least(1, parallel=number)
    return How(parallel=number, kind=kind, deterministic=deterministic)


def runs_as_one() -> bool:
    """Whether other workers run the same lines and must see the same batches: under `paceline run`, unless the script
    distributes itself. Also on the last worker that is left of an elastic run, whose batches stay the same."""
    stage = current()
    if stage is None or stage.aside:
        return False
    return stage.group.world > 1 or stage.group.members is not None


def grows() -> int:
    """The number of the script's batches that make one batch of the run: with `--batch scale` the number of workers."""
    stage = current()
    if stage is None or not runs_as_one() or stage.run.batch != "scale":
        return 1
    return stage.group.world if stage.group.members is None else stage.run.workers  # also without those that are lost


def workers() -> tuple[int, int]:
    """Rank and number of the workers that must see the same batches; (0, 1) if there are none."""
    stage = current()
    return (stage.group.rank, stage.group.world) if stage is not None and runs_as_one() else (0, 1)


def place() -> tuple[int, int]:
    """Rank and world size for `shard()`. (0, 1) in a script that Paceline distributes: every worker of such a script
    needs all samples."""
    if runs_as_one():
        return 0, 1
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    from paceline.settings import of_this_process

    settings = of_this_process()
    return settings.rank, settings.world
