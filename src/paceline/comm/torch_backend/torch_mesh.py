"""torch's default process group inside a worker, and device meshes on it, for strategies that use DTensor.

The group is made in the run's own store. Host tensors go through shared memory on one host, and over Gloo otherwise;
GPU tensors go over NCCL. The script does not see the group if the strategy calls `script.seams.hidden_group` first.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from paceline.comm.axes import Axes
from paceline.comm.group import Group, count_gpus
from paceline.comm.network.gloo import FOREVER
from paceline.comm.torch_backend.registration import NAME
from paceline.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# Bound before `script/seams/` patches torch's functions for the script: `self_distributed` refuses the script's process
# groups, and `hidden_group` hides ours.
_make_group, _has_group = dist.init_process_group, dist.is_initialized


def join(group: Group) -> None:
    """Makes torch's default process group of all workers, if there is none. Every worker calls it; waits for all. A
    group that the script made itself (the Python API under torchrun) is used as it is."""
    if _has_group():
        return
    store = dist.HashStore() if group.world == 1 else group.store("torch")  # type: ignore[attr-defined]
    with group.waiting("start-up: connecting torch's process group"):
        _make_group(_backends(group), store=store, rank=group.rank, world_size=group.world, timeout=FOREVER)


def mesh(group: Group, axes: Axes, device: str, *names: str) -> DeviceMesh:
    """The mesh of all workers on this kind of device. Its dimensions are the axes with these names, in the order of
    `Axes`; without names, those with more than one worker. Every worker calls it; waits for all."""
    from torch.distributed.device_mesh import init_device_mesh  # takes long to import

    sizes = {field.name: getattr(axes, field.name) for field in fields(axes)}
    kept = {name: size for name, size in sizes.items() if (name in names if names else size > 1)}
    missing = [name for name, size in sizes.items() if size > 1 and name not in kept]
    if missing or not kept:
        raise ValueError(f"A mesh with the axes {tuple(kept)} leaves out {missing or 'every axis'} of {axes}.")
    if device == "cuda":
        refuse_shared_gpu(group)
        torch.cuda.current_device()  # otherwise the mesh would choose a device by the rank
    join(group)
    return init_device_mesh(device, tuple(kept.values()), mesh_dim_names=tuple(kept))


def refuse_shared_gpu(group: Group) -> None:
    """`UsageError` if workers share a GPU, unless NCCL was asked for: it then connects them over sockets, which is far
    slower than what the strategy is chosen for."""
    if group.world > 1 and count_gpus() < group.local_world and group.backend != "nccl":
        raise UsageError(
            f"{group.local_world} workers share {count_gpus()} GPU(s): this strategy needs a GPU for each worker.",
            advice=f"Type -n {max(1, count_gpus())}, or --strategy mirrored, which also works on a shared GPU, or "
            "--backend nccl to try the strategy all the same.",
        )


def _backends(group: Group) -> str:
    """One backend for each kind of device. `is_private`: all workers are on one host, and not asked to use Gloo."""
    host = NAME if group.is_private and group.backend != "gloo" else "gloo"
    gpus = ",cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else ""
    return f"cpu:{host}{gpus}"
