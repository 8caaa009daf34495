"""Steps aside for a script that distributes itself.

A script that makes its own process group (by hand, or through DDP, FSDP, Fabric, Accelerate or Lightning) splits its
own work: Paceline then launches and records the workers, and changes no number and no file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from paceline.comm.link.client import LinkStore, link_of_this_process
from paceline.script.seams.stage import Stage


def watch(stage: Stage) -> None:
    """From now on the stage steps aside when the script makes a process group of its own."""
    modules: list[Any] = [dist, dist.distributed_c10d]
    for module in modules:
        module.init_process_group = _aside(stage, module.init_process_group)


def _aside(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not stage.aside:
            stage.aside, stage.pulse.view = True, ""
            if stage.group.world > 1:
                stage.pulse.notice(
                    "The script makes its own process group: Paceline steps aside. Paceline starts, watches and "
                    "records the workers, and leaves splitting and averaging to the script."
                )
        given = signature.bind(*args, **kwargs).arguments
        link = link_of_this_process()
        if link is None or given.get("store") or given.get("init_method") not in (None, "env://"):
            plain(*args, **kwargs)
            return
        # The workers meet in the launcher's store, not at a network port that any process could connect to.
        given["rank"] = stage.group.rank if given.get("rank", -1) < 0 else given["rank"]
        given["world_size"] = stage.group.world if given.get("world_size", -1) < 0 else given["world_size"]
        plain(**given | {"init_method": None, "store": LinkStore(link, "script/")})

    signature = inspect.signature(plain)
    return init_process_group
