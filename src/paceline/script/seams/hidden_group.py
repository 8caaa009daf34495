"""Hides torch's default process group from the script, where a strategy has made one for DTensors.

A script that asks `dist.is_initialized()`, itself or through a library, must get the answer of a single process: on a
"yes" Lightning, Accelerate and torch's own DataLoader would distribute on their own. Modules of torch.distributed see
the group; a process group that the script makes is refused as before (see `self_distributed`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from paceline.script.patches import all_of, patch

NAMES = ("is_initialized", "get_rank", "get_world_size", "get_backend", "barrier", "destroy_process_group")
MISSING = "Default process group has not been initialized, please make sure to call init_process_group."


def hide() -> Callable[[], None]:
    """From now on only modules of torch.distributed see the default group. Returns a function that shows it again."""
    return all_of(
        [patch(owner, name, _hidden(getattr(dist, name))) for name in NAMES for owner in (dist.distributed_c10d, dist)]
    )


def _hidden(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def answer(*args: Any, **kwargs: Any) -> Any:
        asking = str(sys._getframe(1).f_globals.get("__name__", ""))
        if (*args, *kwargs.values()) != (None,) * (len(args) + len(kwargs)) or asking.startswith(
            ("torch.distributed", "paceline.")
        ):
            return plain(*args, **kwargs)  # an argument is a group of the asker's own
        if plain.__name__ == "is_initialized":
            return False
        raise ValueError(MISSING)  # as torch without a group

    return answer
