"""`import paceline` makes `paceline` a backend of torch.distributed, whichever of the two comes first."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from worlds import join

from paceline.comm.group import Group


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(  # as all tests of this folder do
            "import torch.distributed as dist; import paceline", marks=pytest.mark.slow
        ),
        "import paceline; import torch; from torch import distributed as dist",
        pytest.param(
            "import paceline, importlib; importlib.reload(paceline); import torch.distributed as dist",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_either_may_be_imported_first(lines: str) -> None:
    code = (
        f"{lines}\nimport sys\n"
        "assert dist.Backend.backend_list.count('paceline') == 1\n"
        "assert dist.Backend.backend_capability['paceline'] == ['cpu']\n"
        "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo'\n"
        "assert not any('_Once' in repr(finder) for finder in sys.meta_path)\n"
        "import torch.distributed.distributed_c10d as c10d; assert c10d.__spec__.loader is c10d.__loader__\n"
        "dist.init_process_group('paceline', store=dist.HashStore(), rank=0, world_size=1)\n"
        "import torch; tensor = torch.ones(3); dist.all_reduce(tensor); print(dist.get_backend(), tensor.tolist())\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "paceline [1.0, 1.0, 1.0]", done.stderr


def test_without_torch_nothing_happens() -> None:
    code = "import sys; sys.modules['torch'] = None; import paceline; print(paceline.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def opened(group: Group, backend: str) -> list[Any]:
    join(group, backend)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return [dist.get_backend(), dist.get_world_size(), tensor.tolist()]


@pytest.mark.parametrize("backend", ["paceline", "cpu:paceline", "cpu:paceline,cuda:nccl"])
def test_torchs_own_group_may_be_one(backend: str) -> None:
    with alone(2) as pool:
        for name, world, numbers in pool.run(opened, backend):
            assert "paceline" in name
            assert (world, numbers) == (2, [2.0, 2.0, 2.0])


def beside_gloo(group: Group) -> list[Any]:
    join(group, "gloo")
    ours = dist.new_group(backend="paceline")
    few = dist.new_group([0, 2], backend="paceline", group_desc="few")
    tensor, theirs, of_few = torch.ones(2), torch.ones(2), torch.ones(2)
    dist.all_reduce(tensor, group=ours)
    dist.all_reduce(theirs)
    if group.rank != 1:
        dist.all_reduce(of_few, group=few)
        dist.broadcast(tensor, src=2, group=few)
        assert (few.group_desc, dist.get_rank(few)) == ("few", group.rank // 2)
    names = [dist.get_backend(), dist.get_backend(ours), ours.group_name != "", repr(ours) != ""]
    dist.destroy_process_group(ours)
    again = dist.new_group(backend="paceline")
    dist.all_reduce(tensor, group=again)
    return [*names, tensor.tolist(), theirs.tolist(), of_few.tolist()]


def test_a_group_may_be_one_in_a_world_of_gloo() -> None:
    with alone(3) as pool:
        found = pool.run(beside_gloo)
    for rank, answers in enumerate(found):
        assert answers[:6] == ["gloo", "paceline", True, True, [9.0, 9.0], [3.0, 3.0]]
        assert answers[6] == ([1.0, 1.0] if rank == 1 else [2.0, 2.0])


def made_again(group: Group) -> list[float]:
    """The same store and the same names, twice: what the first group wrote there must not lead the second astray."""
    found = []
    for turn in range(3):
        join(group, "paceline")
        tensor = torch.full((100,), turn + 1.0)
        dist.all_reduce(tensor)
        found.append(tensor[0].item())
        dist.destroy_process_group()
    return found


def test_a_group_may_be_made_again_in_the_same_store() -> None:
    with alone(3) as pool:
        assert pool.run(made_again) == [[3.0, 6.0, 9.0]] * 3
