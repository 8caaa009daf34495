"""Stages as the user wrote them: options only. `planner` turns stages into nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline.data.error_policy import Policy

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
