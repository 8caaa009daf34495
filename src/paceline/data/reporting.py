"""What each stage of a pipeline costs, as a table, with the bottleneck named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Report:
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines)


def report_of(runtime: Any) -> Report:
    return Report()
