"""Real hosts over real ssh: network namespaces, each with an sshd. Skipped where these cannot be made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import namespaces
import pytest
from namespaces import Hosts

pytestmark = [
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not() or "there are hosts"),
    pytest.mark.timeout(300),
]

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 6, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=12, shuffle=True)
layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)
model = nn.Sequential(*layers).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, targets in loader:
    loss = (model(inputs) - targets).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), sorted({"a", "b", "c"}) == sorted(set("abc")), hash("a") == hash("a"))
print(model.state_dict()["1.running_mean"].tolist())
"""

LONG = """
import sys, time, torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.randn(12, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, flush=True)
    time.sleep(0.01)
    if step == 5 and "fail" in sys.argv:
        raise ValueError("a bad number")
"""


WIDE = """
import torch
from torch import nn
model = nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(96, 512), batch_size=4)
for x in loader:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "long.py").write_text(LONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    return tmp_path


def typed(hosts: Hosts, *words: str, spec: str | None = None, ssh: str | None = None) -> list[str]:
    options = ("--hosts", spec or hosts.spec(1), "--ssh", ssh or hosts.ssh)
    return [sys.executable, "-m", "paceline", "run", *options, *words]


def done(
    hosts: Hosts, *words: str, spec: str | None = None, ssh: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(typed(hosts, *words, spec=spec, ssh=ssh), capture_output=True, text=True, timeout=200)


def disturbed(hosts: Hosts, fault: Callable[[subprocess.Popen[str]], None]) -> tuple[int, str, float]:
    """Exit code, standard error, and the seconds from the fault, which comes at step 20, to the end."""
    process = subprocess.Popen(typed(hosts, "long.py"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "20":
            break
    began = time.monotonic()
    fault(process)
    _, err = process.communicate(timeout=100)
    return process.returncode, err, time.monotonic() - began


def nothing_is_left(hosts: Hosts) -> None:
    by = time.monotonic() + 30
    while any(hosts.processes().values()):
        assert time.monotonic() < by, hosts.processes()
        time.sleep(0.05)


def pid_of_a_worker(hosts: Hosts, number: int) -> int:
    """The last process that was started on a host."""
    found = subprocess.run(["ip", "netns", "pids", hosts.spaces[number]], capture_output=True, text=True)
    return max(int(pid) for pid in found.stdout.split())


@pytest.mark.slow
def test_the_same_numbers_and_a_whole_record(hosts: Hosts, folder: Path) -> None:
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True).stdout.split()
    found = done(hosts, "train.py", spec=f"{hosts.names[0]}:1,{hosts.names[1]}:1")
    assert found.returncode == 0, found.stderr
    numbers = [float(word.strip("[],")) for word in found.stdout.split() if word != "True"]
    assert numbers == pytest.approx([float(word.strip("[],")) for word in plain if word != "True"], rel=1e-9)
    (record,) = Path("paceline-runs").iterdir()
    entry = json.loads((record / "run.json").read_text())
    assert len(entry["workers"]) == 2
    for rank in range(2):
        assert len((record / f"steps.rank{rank}.jsonl").read_text().splitlines()) == 4
    assert (record / "log.rank1.txt").read_text() == (record / "log.rank0.txt").read_text()
    nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "each"),
    [("zero1", 2), ("sharded", 1), ("mesh(data=2,model=2)", 2), ("mesh(data=1,model=2)", 1), ("pipeline(stages=2)", 1)],
)
def test_the_same_numbers_under_other_strategies(hosts: Hosts, folder: Path, strategy: str, each: int) -> None:
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True).stdout.split()
    spec = ",".join(f"{name}:{each}" for name in hosts.names[:2])
    found = done(hosts, "--strategy", strategy, "train.py", spec=spec)
    assert found.returncode == 0, found.stderr
    numbers = [float(word.strip("[],")) for word in found.stdout.split() if word != "True"]
    assert numbers == pytest.approx([float(word.strip("[],")) for word in plain if word != "True"], rel=1e-9)
    nothing_is_left(hosts)


def test_a_parameter_server_has_workers_on_other_hosts(hosts: Hosts, folder: Path) -> None:
    """They reach it over the network, although these hosts have one file system, and make all of their steps."""
    (folder / "wide.py").write_text(WIDE)

    def sent() -> int:
        return int(hosts.within(1, "cat", "/sys/class/net/eth0/statistics/tx_bytes").stdout)

    before = sent()
    found = done(hosts, "--strategy", "server", "wide.py", spec="host0:1,host1:1")
    assert found.returncode == 0, found.stderr
    assert sent() - before > 12 * 512 * 512 * 4  # the gradients of its half of the batches
    assert "the others go on without it" not in found.stderr
    record = next((folder / "paceline-runs").iterdir())
    assert [len((record / f"steps.rank{rank}.jsonl").read_text().splitlines()) for rank in range(2)] == [12, 12]


@pytest.mark.slow
def test_the_same_numbers_on_three_hosts_with_two_workers_each(hosts: Hosts, folder: Path) -> None:
    plain = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=True).stdout.split()
    found = done(hosts, "train.py", spec=hosts.spec(2))
    assert found.returncode == 0, found.stderr
    numbers = [float(word.strip("[],")) for word in found.stdout.split() if word != "True"]
    assert numbers == pytest.approx([float(word.strip("[],")) for word in plain if word != "True"], rel=1e-9)
    nothing_is_left(hosts)


def test_a_key_that_hosts_do_not_know(hosts: Hosts, folder: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "other_key"], check=True)
    config = (hosts.folder / "ssh_config").read_text().replace(f"{hosts.folder}/user_key", str(folder / "other_key"))
    (folder / "config").write_text(config)
    found = done(hosts, "train.py", ssh=f"ssh -F {folder}/config")
    assert found.returncode == 1
    assert "3 of 3 hosts cannot be used" in found.stderr
    assert found.stderr.count("Permission denied") == 3
    assert "Traceback" not in found.stderr
    nothing_is_left(hosts)


@pytest.mark.slow
def test_all_problems_are_told_at_once_and_soon(hosts: Hosts, folder: Path) -> None:
    nobody = hosts.addresses[0].rsplit(".", 1)[0] + ".77"
    began = time.monotonic()
    found = done(hosts, "train.py", spec=f"{hosts.names[0]}:1,{nobody}:2,nowhere.invalid:1")
    assert time.monotonic() - began < 30  # on a busy machine
    assert found.returncode == 1
    assert "2 of 3 hosts cannot be used" in found.stderr
    assert nobody in found.stderr
    assert "nowhere.invalid" in found.stderr
    nothing_is_left(hosts)


@pytest.mark.slow
def test_another_version_of_a_package(hosts: Hosts, folder: Path) -> None:
    other = folder / "site" / "torch-1.0.0.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
    # An ssh that lets one host's Python find another torch.
    wrapper = folder / "ssh"
    wrapper.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\nif {hosts.names[1]!r} in words:\n"
        f"    words[-1] = words[-1].replace('PYTHONPATH=', 'PYTHONPATH={other.parent}:')\n"
        f"words = {hosts.ssh.split()!r} + words\nos.execvp(words[0], words)\n"
    )
    wrapper.chmod(0o755)
    found = done(hosts, "train.py", ssh=str(wrapper))
    assert found.returncode == 1
    assert f"{hosts.names[1]}: torch 1.0.0 is installed there, and" in found.stderr
    nothing_is_left(hosts)


@pytest.mark.slow
def test_hosts_that_cannot_connect_to_each_other(hosts: Hosts, folder: Path) -> None:
    first, second = hosts.addresses[:2]
    hosts.within(1, "ip", "route", "add", "blackhole", f"{first}/32")
    try:
        found = done(hosts, "train.py")
    finally:
        hosts.within(1, "ip", "route", "del", "blackhole", f"{first}/32")
    assert found.returncode == 1
    assert f"{hosts.names[0]}: cannot connect to {hosts.names[1]} at {second} (eth0)" in found.stderr
    assert "--interface" in found.stderr
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_failure_is_named_with_its_host_and_ends_all(hosts: Hosts, folder: Path) -> None:
    found = done(hosts, "long.py", "fail")
    assert found.returncode == 1
    assert "ValueError: a bad number" in found.stderr
    assert f"on {hosts.names[0]} failed" in found.stderr
    nothing_is_left(hosts)


@pytest.mark.slow
def test_ctrl_c_ends_all(hosts: Hosts, folder: Path) -> None:
    code, err, _ = disturbed(hosts, lambda process: process.send_signal(signal.SIGINT))
    assert code == 130, err
    nothing_is_left(hosts)


@pytest.mark.slow
def test_nothing_is_left_if_the_controller_is_killed(hosts: Hosts, folder: Path) -> None:
    disturbed(hosts, lambda process: process.kill())
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_killed_worker_is_named_with_its_host(hosts: Hosts, folder: Path) -> None:
    code, err, _ = disturbed(hosts, lambda process: os.kill(pid_of_a_worker(hosts, 1), signal.SIGKILL))
    assert code == 137
    assert f"Worker 1 on {hosts.names[1]} was killed by SIGKILL" in err
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_host_that_is_cut_off_is_named_and_ends_by_itself(hosts: Hosts, folder: Path) -> None:
    try:
        code, err, _ = disturbed(hosts, lambda process: _link(hosts, "down"))
        assert code == 1
        assert f"The host {hosts.names[2]}, with worker 2, is lost" in err
        nothing_is_left(hosts)  # the agent on it, too, has noticed
    finally:
        _link(hosts, "up")


def _link(hosts: Hosts, how: str) -> None:
    subprocess.run(["ip", "-n", hosts.spaces[2], "link", "set", "eth0", how], check=True)


@pytest.mark.slow
def test_secrets_are_in_no_process_list_and_no_record(hosts: Hosts, folder: Path) -> None:
    lines: list[str] = []

    def look(process: subprocess.Popen[str]) -> None:
        lines.extend(line for found in hosts.processes().values() for line in found)
        lines.append(subprocess.run(["ps", "axww", "-o", "command"], capture_output=True, text=True).stdout)
        process.send_signal(signal.SIGINT)

    disturbed(hosts, look)
    kept = "".join(path.read_text() for path in Path("paceline-runs").rglob("*") if path.is_file())
    assert "token" not in " ".join(lines) + kept
    assert "curve" not in " ".join(lines).lower() + kept.lower()
