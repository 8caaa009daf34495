"""A call on its way to the workers of `horovod.run`, and the names of its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CALL = "call"


@dataclass(frozen=True, slots=True)
class Call:
    """A pickled (function, arguments, keywords), and what a worker needs to understand it: the caller's sys.path, and
    its main program, by file or by module name; empty if the function needs none."""

    pickled: bytes
    path: list[str]
    file: str = ""
    module: str = ""


def result_file(folder: str | os.PathLike[str], rank: int) -> Path:
    """Where the worker of this rank leaves its result."""
    return Path(folder, f"result.{rank}")
