"""Finds the line of the user's script that is running."""

from __future__ import annotations

import os
import sys
from typing import Any

NOT_THE_SCRIPT = ("paceline", "torch", "importlib", "runpy", "contextlib", "threading")
_LAUNCH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "launch", "")
_LIBRARIES = tuple(
    os.path.join(os.path.dirname(file), "") for file in (os.__file__, os.path.dirname(os.path.abspath(__file__)))
)


def is_of_library(file: str | None) -> bool:
    """Whether a file is no part of the script: Python's own, an installed package's, or none at all."""
    return file is None or not os.path.isabs(file) or "site-packages" in file or file.startswith(_LIBRARIES)


def script_line() -> str:
    """The innermost line of the script (not of torch or Paceline) that is running, as file:line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        # A worker's outermost frame is a launcher module that runs as `__main__`, like the script: compare the file.
        if not name.startswith(NOT_THE_SCRIPT) and not frame.f_code.co_filename.startswith(_LAUNCH):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script's end"
