"""Replaces a function of torch, and puts it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PATCHED: list[tuple[Any, str]] = []  # owners and names, as they are now; `canary` must know each of them


def patch(owner: Any, name: str, new: Any) -> Callable[[], None]:
    """From now on `owner.name` is `new`. Returns a function that puts torch's own back."""
    inherited = name not in vars(owner)
    old = None if inherited else vars(owner)[name]
    setattr(owner, name, new)
    PATCHED.append((owner, name))

    def take_back() -> None:
        PATCHED.remove((owner, name))
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, old)

    return take_back


def all_of(undo: list[Callable[[], None]]) -> Callable[[], None]:
    """One function that takes back all of these patches, the last one first."""

    def remove() -> None:
        for take_back in reversed(undo):
            take_back()

    return remove
