"""Two hosts, made of network namespaces that a pair of virtual interfaces joins, under another launcher's variables."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import paceline as pl
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model, optimizer = pl.Mirrored(compression=sys.argv[1]).distribute(model, optimizer)
x = torch.randn(60, 16, dtype=torch.float64)
y = x[:, :4] * 2
for step in range(8):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", flush=True)
from paceline.script.seams.api import _stage
print(_stage.group._channel.name if _stage.group.world > 1 else "alone", flush=True)
"""


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    name = f"pltry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


@contextlib.contextmanager
def two_hosts() -> Iterator[list[tuple[str, str]]]:
    """Names of namespaces, and their addresses."""
    hosts = [(f"pl{os.getpid()}{end}", f"10.99.7.{end}") for end in (1, 2)]
    (first, _), (second, _) = hosts
    try:
        for name, _ in hosts:
            subprocess.run(["ip", "netns", "add", name], check=True)
        link = ["type", "veth", "peer", "name", "link2", "netns", second]
        subprocess.run(["ip", "link", "add", "name", "link1", "netns", first, *link], check=True)
        for end, (name, address) in enumerate(hosts, 1):
            for command in (f"addr add {address}/24 dev link{end}", "link set lo up", f"link set link{end} up"):
                subprocess.run(["ip", "-n", name, *command.split()], check=True)
        yield hosts
    finally:
        for name, _ in hosts:
            subprocess.run(["ip", "netns", "del", name], check=False)


def alone(script: Path) -> list[str]:
    done = subprocess.run([sys.executable, script, "none"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def on(hosts: list[tuple[str, str]], script: Path, compression: str) -> list[str]:
    """What the four workers' rank 0 printed."""
    running = []
    for rank in range(4):
        place = {"RANK": rank, "LOCAL_RANK": rank % 2, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}
        where = {"MASTER_ADDR": hosts[0][1], "MASTER_PORT": 29400, "OMP_NUM_THREADS": 1}
        environment = os.environ | {name: str(value) for name, value in (place | where).items()}
        command = ["ip", "netns", "exec", hosts[rank // 2][0], sys.executable, str(script), compression]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, env=environment, **pipes))  # type: ignore[call-overload]
    said = [process.communicate(timeout=400) for process in running]
    assert [process.returncode for process in running] == [0] * 4, "\n".join(err for _, err in said)
    return said[0][0].split()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(900)  # four processes that import torch on few cores, twice
@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root and ip")
def test_mirrored_over_two_hosts_prints_the_same_numbers_and_sums_by_hosts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    *expected, _ = alone(script)
    with two_hosts() as hosts:
        *found, channel = on(hosts, script, "none")
        *rounded, _ = on(hosts, script, "bf16")
    assert channel == "hosts"
    assert [float(loss) for loss in found] == pytest.approx([float(loss) for loss in expected], rel=1e-9)
    assert [float(loss) for loss in rounded] == pytest.approx([float(loss) for loss in expected], rel=0.01)
    assert rounded != expected, "bf16 changes numbers, and was asked for"
