"""DDP, FSDP2 and DTensor train on `paceline` as they do on Gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from worlds import join, make_tiny

from paceline.comm.group import Group

STEPS = 4
pytestmark = pytest.mark.filterwarnings("ignore")


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)).double()


def batches(rank: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    return [
        (torch.randn(10, 6, generator=generator).double(), torch.randn(10, 4, generator=generator).double())
        for _ in range(STEPS)
    ]


def train(model: nn.Module, data: list[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in data:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_ddp(rank: int, world: int) -> list[float]:
    return train(DistributedDataParallel(make_model(), bucket_cap_mb=0.001), batches(rank))


def with_ddp_and_unused_parameters(rank: int, world: int) -> list[float]:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.ways = nn.ModuleList([nn.Linear(6, 4).double() for _ in range(3)])

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.ways[rank % 2](inputs)

    return train(DistributedDataParallel(Forked(), find_unused_parameters=True), batches(rank))


def with_ddp_in_half_precision(rank: int, world: int) -> list[float]:
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model, batches(rank))


def with_sparse_gradients(rank: int, world: int) -> list[float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 4)).double())
    words = torch.Generator().manual_seed(rank)
    return train(model, [(torch.randint(0, 20, (10,), generator=words), targets) for _, targets in batches(rank)])


def with_power_sgd(rank: int, world: int) -> list[float]:
    """Its hook begins collectives in what hangs on others, and waits for them."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 32), nn.Linear(32, 4)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, random_seed=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model, [(inputs.float(), targets.float()) for inputs, targets in batches(rank)])


def with_fully_sharded(rank: int, world: int) -> list[float]:
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return train(model, batches(rank))


def with_tensor_parallel(rank: int, world: int) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4)).double()
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, batches(0))


def with_both(rank: int, world: int) -> list[float]:
    """Tensor parallel within pairs, sharded across them: groups in two directions."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 4)).double()
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return train(model, batches(mesh["data"].get_local_rank()))


KINDS: dict[str, Any] = {
    "DDP": with_ddp,
    "DDP with unused parameters": with_ddp_and_unused_parameters,
    "DDP in float16": with_ddp_in_half_precision,
    "DDP with sparse gradients": with_sparse_gradients,
    "DDP with PowerSGD": with_power_sgd,
    "FSDP2": with_fully_sharded,
    "DTensor": with_tensor_parallel,
    "FSDP2 over DTensor": with_both,
}


def trained(group: Group, backend: str) -> dict[str, list[float]]:
    make_tiny()
    join(group, backend)
    found = {
        name: kind(group.rank, group.world) for name, kind in KINDS.items() if "over" not in name or group.world == 4
    }
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_losses_are_those_of_gloo(world: int) -> None:
    with alone(world) as pool:
        ours = pool.run(trained, "cpu:paceline,cuda:nccl")
    with alone(world) as pool:
        expected = pool.run(trained, "gloo")
    for rank in range(world):
        for name, losses in expected[rank].items():
            close = 1e-2 if name.endswith(("float16", "PowerSGD")) else 1e-10
            assert ours[rank][name] == pytest.approx(losses, rel=close), name
            assert len(set(losses)) == STEPS  # they learn
