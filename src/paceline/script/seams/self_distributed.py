"""Scripts that distribute themselves: run as they are with `--as torchrun` (or `horovod`), refused without.

A script that makes its own process group (by hand, or through Fabric, Accelerate or Lightning) splits its own work.
With `--as torchrun` Paceline launches and records the workers, and changes no number and no file. Without `--as` the
script gets no rank, so that a script with two branches takes its single-process branch. A script that makes a process
group all the same is refused, with the command to type.
"""

from __future__ import annotations

import inspect
import os
import random
import shlex
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from paceline.errors import ScriptError
from paceline.imports import holders
from paceline.script.chance import kind_of
from paceline.script.seams import api
from paceline.script.seams.stage import Stage
from paceline.settings import Launcher, RunSettings
from paceline.wire.link import LinkStore, link_of_this_process

ALONE = {
    "torchrun": "--as torchrun: the script made no process group, so each of the {world} workers ran all of it. If the "
    "script is written for one process, leave --as out: Paceline then splits its work.",
    "horovod": "The script was run as one that distributes itself with Horovod, but it did not call hvd.init(): each "
    "of the {world} workers ran all of it. If the script is written for one process, start it with `paceline run`, "
    "without --as: Paceline then splits its work.",
}

_pid = 0  # of the worker
_joined: _Joined | None = None  # of this process


def watch(stage: Stage) -> None:
    """From now on the script's process groups are made in the launcher's store; without `--as` they are refused."""
    global _pid
    _pid, plain = os.getpid(), dist.init_process_group
    new = _joins(stage, plain) if stage.aside else _refuses(stage)
    # torch's own modules (device_mesh) have imported the function by name.
    for module, name in holders(plain):
        if module.__name__.startswith("torch.distributed"):
            setattr(module, name, new)


def seed(run: RunSettings, rank: int) -> None:
    """Seeds the script's streams differently on each worker, as processes of torchrun are. Workers are forks of one
    process, so without a seed their streams would be equal."""
    random.seed(own := run.seed + run.seed_shift + rank)
    np.random.seed(own % 2**32)
    torch.manual_seed(own)


def joins_by_horovod() -> None:
    """Called by `hvd.init()`. ScriptError, with the command to type, in a run of several workers that was not started
    as one of a script that distributes itself: Paceline has split the script's work already. Outside `paceline run` it
    does nothing."""
    stage = api.current()
    if stage is None or not stage.ending.stern:  # the Python API brings a stage of its own
        return
    if _joined is not None:
        _joined.joined = True
    if not stage.aside and stage.group.world > 1:
        raise _refusal(stage, "hvd.init()", "horovod")


def command(run: RunSettings, launcher: Launcher = "torchrun") -> str:
    """The command that runs this script as one that distributes itself."""
    script = ["-m", run.script] if run.module else [run.script]
    return shlex.join(["paceline", "run", "-n", str(run.workers), "--as", launcher, *script, *run.arguments])


def _refusal(stage: Stage, call: str, launcher: Launcher) -> BaseException:
    error = ScriptError(
        f"{_own_line(stage.run)} calls {call}: the script distributes itself, but `paceline run` started it as a "
        "script for a single process.",
        advice=f"Type: {command(stage.run, launcher)}",
    )
    # A fork of the worker has no channel to the launcher.
    return error if os.getpid() != _pid else stage.ending.carry(error)


def _refuses(stage: Stage) -> Callable[..., Any]:
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        raise _refusal(stage, "torch.distributed.init_process_group", "torchrun")

    return init_process_group


def _own_line(run: RunSettings) -> str:
    """The innermost running line of the script's own files, as file:line. A library that makes the process group
    (Accelerate, Lightning) is passed over: the user can change only the line that called it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        kind = kind_of(frame.f_code.co_filename)
        # With -m, the script itself may be a module of an installed package.
        if kind == "script" or (kind == "library" and frame.f_globals.get("__name__") == "__main__"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return run.script


class _Joined:
    """Notes whether the script has made a process group."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.joined = stage, False
        stage.subscribe(self)

    def on_end(self) -> None:
        run, world = self.stage.run, self.stage.group.world
        by_api = api.current() is not self.stage  # paceline.Mirrored().distribute(…) brought its own stage
        if run.launch_as in ALONE and not self.joined and not by_api and world > 1:
            self.stage.pulse.notice(ALONE[run.launch_as].format(world=world))


def _joins(stage: Stage, plain: Callable[..., Any]) -> Callable[..., Any]:
    global _joined
    state = _joined = _Joined(stage)
    signature = inspect.signature(plain)

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        state.joined = True
        given = signature.bind(*args, **kwargs).arguments
        link = link_of_this_process()
        if link is None or given.get("store") or given.get("init_method") not in (None, "env://"):
            plain(*args, **kwargs)
            return
        # The workers meet in the launcher's store, not at a network port that any process could connect to.
        given["rank"] = stage.group.rank if given.get("rank", -1) < 0 else given["rank"]
        given["world_size"] = stage.group.world if given.get("world_size", -1) < 0 else given["world_size"]
        plain(**given | {"init_method": None, "store": LinkStore(link, "script/")})

    return init_process_group
