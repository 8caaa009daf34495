"""Which reader reads a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.data.losses import Losses, Policy


def reader_of(format: str, policy: Policy, losses: Losses) -> Any:
    return read_lines


def read_lines(path: Any, start: int) -> Iterator[list[str]]:
    """A text file's lines."""
    with open(path, encoding="utf-8", newline="") as file:
        chunk: list[str] = []
        for number, line in enumerate(file):
            if number >= start:
                chunk.append(line.rstrip("\r\n"))
                if len(chunk) == 256:
                    yield chunk
                    chunk = []
        if chunk:
            yield chunk
