"""LARS and LAMB on sharded parameters: the norms are those of whole tensors."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from pool import alone
from torch import nn

import paceline as pl
from paceline.comm.group import Group

SHAPES = ((5, 4), (7,), (1, 3))  # the last one lies with one worker alone


def both_ways(group: Group, meeting: str) -> list[bool]:
    """The same steps with whole and with sharded parameters; whether the weights are the same after them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=group.rank, world_size=group.world)
    mesh = init_device_mesh("cpu", (group.world,))
    found = []
    for kind in (pl.LAMB, pl.LARS):
        torch.manual_seed(0)
        whole = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]
        parts = [nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in whole]
        first, second = kind(whole, lr=0.1, weight_decay=0.01), kind(parts, lr=0.1, weight_decay=0.01)
        for step in range(4):
            torch.manual_seed(step + 1)
            for p, q in zip(whole, parts, strict=True):
                p.grad = torch.randn_like(p)
                q.grad = distribute_tensor(p.grad.clone(), mesh, [Shard(0)])
            first.step()
            second.step()
        found += [torch.allclose(q.full_tensor(), p) for p, q in zip(whole, parts, strict=True)]
        found.append(all(isinstance(second.state[q][kind.moments[0]], DTensor) for q in parts))
    dist.destroy_process_group()
    return found


def test_sharded_parameters_make_the_same_steps_as_whole_ones(tmp_path: Path) -> None:
    with alone(2) as workers:
        assert workers.run(both_ways, str(tmp_path / "meeting")) == [[True] * 8] * 2
