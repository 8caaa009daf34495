"""Another account on the same host attacks a run: it gets at nothing, and the numbers are those of plain Python."""

from __future__ import annotations

import contextlib
import io
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from intruder import Intruder

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in DataLoader(data, batch_size=8, shuffle=True):
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9f}", flush=True)
"""


def another_account() -> int:
    """The id of an account that is not ours; a skip with the reason where this process cannot become one."""
    if os.geteuid() != 0:
        pytest.skip("to act as a second account takes root")
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        pytest.skip("this host has no account `nobody`")


@pytest.mark.parametrize("backend", ["auto", pytest.param("gloo", marks=pytest.mark.slow)])
def test_a_run_under_attack_prints_the_same_numbers_and_lets_nobody_in(tmp_path: Path, backend: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN + SOCKETS)
    command = [sys.executable, "-m", "paceline", "run", "-n", "2", "--backend", backend, "train.py"]
    intruder = Intruder(another_account())
    if intruder.trouble:
        pytest.skip(f"a second account cannot be played here: {intruder.trouble}")
    try:
        run = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=200, preexec_fn=intruder.join_its_network
        )
    finally:
        got = intruder.stop()
    assert run.returncode == 0, run.stderr
    with contextlib.redirect_stdout(io.StringIO()) as plain:
        exec(TRAIN, {})
    expected = plain.getvalue().split()
    assert [float(loss) for loss in run.stdout.split()[: len(expected)]] == pytest.approx(list(map(float, expected)))
    if backend == "auto":
        assert "internet sockets: []" in run.stdout
    assert got == {"stores": [], "sockets": [], "processes": [], "files": []}


SOCKETS = """
import os, re

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])

worker, zygote = os.getpid(), os.getppid()
sockets = set()
for pid in (worker, zygote, parent(zygote)):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets |= set(re.findall(r"socket:\\[(\\d+)\\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:
            pass
assert sockets
tables = [line.split() for name in ("tcp", "tcp6", "udp") for line in open(f"/proc/net/{name}").readlines()[1:]]
print("internet sockets:", [fields[1] for fields in tables if fields[9] in sockets])
"""


@pytest.mark.slow  # the run under attack looks at its sockets, too; this one needs no second account
def test_a_run_on_one_host_has_no_internet_socket_at_all(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + SOCKETS)
    command = [sys.executable, "-m", "paceline", "run", "-n", "2", "train.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert "internet sockets: []" in run.stdout
