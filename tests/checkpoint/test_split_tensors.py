"""Tensors that are split over workers (DTensors of FSDP2) are saved whole, and loaded into any split."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import paceline
from paceline.checkpoint import manifest

SCRIPT = """
import os, sys, torch, paceline
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

folder, saved_from, saved_to = sys.argv[1:4]
children = [os.fork() for _ in range(1)]
rank = int(children[0] == 0)
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store-{saved_to}", 2), rank=rank, world_size=2)
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double()
fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
if saved_from != "-":
    assert paceline.load(f"{folder}/{saved_from}", model, optimizer).step == 1
x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
(model(x) ** 2).mean().backward()
optimizer.step()
paceline.save(f"{folder}/{saved_to}", model, optimizer, step=1, asynchronous=saved_to == "later")
paceline.checkpoint.wait()
dist.destroy_process_group()
if rank == 0:
    assert os.waitpid(children[0], 0)[1] == 0
"""


def run(folder: Path, source: str, target: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(folder), source, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
    (model(x) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("target", ["now", "later"])
def test_a_plain_model_goes_on_as_fsdp_and_back(tmp_path: Path, target: str) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    step(model, optimizer)
    paceline.save(tmp_path / "plain", model, optimizer, step=1)
    run(tmp_path, "plain", target)
    step(model, optimizer)
    content = manifest.read(tmp_path / target)
    assert content.tensors["model/0.weight"].shape == [5, 3]
    assert len(content.files) == (2 if target == "now" else 1)  # each worker writes some of the tensors
    assert (content.saved["workers"], len(content.random)) == (2, 2)
    other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1)).double()
    resumed = torch.optim.Adam(other.parameters(), lr=0.1)
    paceline.load(tmp_path / target, other, resumed)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=1e-12, atol=1e-12)
        for key, value in optimizer.state[one].items():
            torch.testing.assert_close(resumed.state[two][key], value, rtol=1e-12, atol=1e-12)
