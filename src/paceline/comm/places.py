"""Where in a script something happens."""

from __future__ import annotations

import sys
from typing import Any

NOT_THE_SCRIPT = ("paceline", "torch", "importlib", "runpy", "contextlib", "threading")


def script_line() -> str:
    """The innermost line of the script (not of torch or Paceline) that is running, as file:line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(NOT_THE_SCRIPT):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script's end"
