"""What a run is asked to do, and what one worker of it is told.

The only module that reads the environment. The launcher sends `WorkerSettings` to each worker as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

View = Literal["auto", "batch", "slice"]
Batch = Literal["keep", "scale"]
Backend = Literal["auto", "gloo", "nccl"]
Compression = Literal["none", "bf16", "fp16", "powersgd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What to trace."""

    steps: int = 5
    warm_up: int | None = None  # steps before; None: until step times have settled
    stack: bool = False  # Python's stack, too
    whole_run: bool = False  # the script goes on after the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SharpnessSettings:
    """What to measure of the solution that a run ends in."""

    samples: int = 1024  # of the last batches, or one batch where that is larger
    keep: bool = False  # the weights stay in the record
    line_from: str = ""  # a record that kept its own


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the user asked for: the same on every worker of a run."""

    script: str  # a path, or a module's name when `module` is set
    module: bool = False
    arguments: tuple[str, ...] = ()
    workers: int = 1
    view: View = "auto"
    batch: Batch = "keep"
    batch_dim: int = 0
    whole: tuple[str, ...] = ()  # modules that are never sliced: class name or attribute path
    sync_bn: bool = False
    threads: int | None = None  # per worker; None: its share of the cores
    steps: int | None = None  # stop after so many
    enough: float = 0.0  # stop after so many seconds of settled steps, ten of them at least; 0: don't
    backend: Backend = "auto"
    compression: Compression = "none"  # of gradients, between hosts
    share_record: bool = False  # other accounts may read the record
    seed: int = 0  # starts torch's, numpy's and Python's random streams; a script's own seed overrides it
    seed_shift: int = 0  # added to `seed`, and to every seed that the script sets
    memory_limit: int = 0  # bytes that a worker may take; 0: what there is
    stall_warning: float = 60.0
    stall_abort: float | None = None
    staged: bool = True  # False: a program that measures, not a training script; it is left alone
    mods: tuple[str, ...] = ()  # as typed: name, or name=value
    autotune: bool = True  # try sizes of buckets in the first steps
    timeline: bool = False  # keep a time line of phases and buckets in the record
    noise_scale: bool = False  # measure gradient noise
    profile: ProfileSettings | None = None  # trace a few steps
    sharpness: SharpnessSettings | None = None  # measure the solution at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What one worker is told when it starts."""

    run: RunSettings
    record: str  # the record's folder
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    host: str = "localhost"
    cores: tuple[int, ...] = ()  # affinity; empty: leave it alone
    threads: int = 1
    gpus: tuple[str, ...] = ()  # CUDA_VISIBLE_DEVICES of this worker, its own first
    store_host: str = "127.0.0.1"  # of torch's own store: under another launcher, or for a script that makes one
    store_port: int = 0
    agent_store: bool = False  # another launcher's agent serves the store
    control: str = ""  # address of the launcher's control channel; empty: none
    control_key: str = ""  # the launcher's public CURVE key
    token: str = ""  # proves that a message is of this run


def from_environment(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """The settings of a process that another launcher (torchrun, Slurm through it) started, or of a lone one."""
    env = os.environ if environ is None else environ
    rank, world = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
    return WorkerSettings(
        run=RunSettings(script="", workers=world),
        record="",
        rank=rank,
        world=world,
        local_rank=int(env.get("LOCAL_RANK", str(rank))),
        local_world=int(env.get("LOCAL_WORLD_SIZE", str(world))),
        store_host=env.get("MASTER_ADDR", "127.0.0.1"),
        store_port=int(env.get("MASTER_PORT", "0")),
        agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def visible_devices(environ: Mapping[str, str] | None = None) -> tuple[str, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this run, in its order; None where it says nothing."""
    text = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    # CUDA stops reading at the first entry that is no device: "" and "-1" hide all that follow.
    end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
    return tuple(names[:end])


def asked_threads(environ: Mapping[str, str] | None = None) -> int | None:
    """Threads per process that the user's own OMP_NUM_THREADS asks for; None where it says nothing."""
    text = (os.environ if environ is None else environ).get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def thread_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables around us that decide how many threads a process computes with."""
    env = os.environ if environ is None else environ
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {name: env[name] for name in names if name in env}


def launcher_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables by which another launcher tells a process that it is a worker."""
    env = os.environ if environ is None else environ
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {name: env[name] for name in names if name in env}
