"""torch's default process group inside workers: DTensors work on it, and the script does not see it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from staged import lone_group
from torch.utils.data import DataLoader

from paceline.comm.axes import Axes
from paceline.comm.group import Group
from paceline.comm.torch_backend import torch_mesh
from paceline.errors import UsageError
from paceline.script.patches import PATCHED
from paceline.script.seams import hidden_group


def whole_of_shards(group: Group, axes: Axes) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = torch_mesh.mesh(group, axes, "cpu")
    given = torch.arange(6.0).view(3, 2)
    names = mesh.mesh_dim_names
    assert names is not None
    cut = distribute_tensor(given, mesh[names[-1]], [Shard(0)])
    return names, tuple(mesh.shape), cut.to_local().shape[0], cut.full_tensor().tolist()


def test_shards_of_a_mesh_are_put_together() -> None:
    given = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with alone(2) as pool:
        assert pool.run(whole_of_shards, Axes(shard=2)) == [(("shard",), (2,), 2, given), (("shard",), (2,), 1, given)]
        # The process group is made once for all meshes of a process.
        assert pool.run(whole_of_shards, Axes(tensor=2))[1] == (("tensor",), (2,), 1, given)


@pytest.mark.slow
def test_a_mesh_has_two_dimensions() -> None:
    given = [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    with alone(4) as pool:
        found = pool.run(whole_of_shards, Axes(data=2, tensor=2))
    assert found == [(("data", "tensor"), (2, 2), rows, given) for rows in (2, 1, 2, 1)]


def asked_by_the_script(group: Group) -> Any:
    show = hidden_group.hide()
    torch_mesh.join(group)
    told: list[Any] = [dist.is_initialized(), dist.distributed_c10d.is_initialized()]
    for ask in (dist.get_rank, dist.get_world_size, dist.get_backend, dist.barrier, dist.destroy_process_group):
        with pytest.raises(ValueError, match="has not been initialized"):
            ask()
    told.append([batch.tolist() for batch in DataLoader(list(range(4)), batch_size=2)])  # type: ignore[arg-type]
    seen = torch.ones(1)
    dist.all_reduce(seen)
    show()
    return [*told, int(seen), dist.get_rank(), dist.is_initialized(), PATCHED]


def test_the_script_does_not_see_the_group() -> None:
    with alone(2) as pool:
        assert pool.run(asked_by_the_script) == [
            [False, False, [[0, 1], [2, 3]], 2, rank, True, []] for rank in range(2)
        ]


def test_an_axis_with_several_workers_cannot_be_left_out() -> None:
    with pytest.raises(ValueError, match="leaves out"):
        torch_mesh.mesh(lone_group(), Axes(data=2, shard=2), "cpu", "shard")


def test_workers_that_share_a_gpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = lone_group()
    torch_mesh.refuse_shared_gpu(group)  # alone
    group.world = group.local_world = 2
    monkeypatch.setattr(torch_mesh, "count_gpus", lambda: 1)
    with pytest.raises(UsageError, match="2 workers share 1 GPU"):
        torch_mesh.refuse_shared_gpu(group)
