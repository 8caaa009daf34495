"""The verbs that make series of trials on two real hosts over ssh: network namespaces with a slow link."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "launch"))
import namespaces
from namespaces import Hosts

pytestmark = [
    pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not() or "there are hosts"),
    pytest.mark.timeout(400),
    pytest.mark.slow,
]
LINK = 100  # Mbit/s
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(2400, 16, dtype=torch.float64)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(16, {width}), nn.Tanh(), nn.Linear({width}, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in loader:
        loss = (model(inputs) - targets).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("test accuracy:", 0.5)
"""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """The third one has a slower link."""
    with namespaces.hosts(tmp_path_factory.mktemp("hosts"), 3) as found:
        for space, rate in zip(found.spaces, (LINK, LINK, LINK // 4), strict=True):
            limit = ["tbf", "rate", f"{rate}mbit", "burst", "64kb", "latency", "200ms"]
            namespaces.run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *limit)
        yield found


@pytest.fixture
def hosts(three: Hosts) -> Hosts:
    return dataclasses.replace(three, names=three.names[:2])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT.format(width=64))
    (tmp_path / "wide.py").write_text(SCRIPT.format(width=2000))
    (tmp_path / "widest.py").write_text(SCRIPT.format(width=30_000))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    return tmp_path


def typed(hosts: Hosts, verb: str, *words: str, each: int = 1, ssh: str = "") -> list[str]:
    where = ["--hosts", hosts.spec(each), "--ssh", ssh or hosts.ssh, "--json"]
    return [sys.executable, "-m", "paceline", verb, *where, *words]


def document(hosts: Hosts, verb: str, *words: str, each: int = 1, ssh: str = "") -> dict[str, Any]:
    done = subprocess.run(typed(hosts, verb, *words, each=each, ssh=ssh), capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    nothing_is_left(hosts)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def nothing_is_left(hosts: Hosts) -> None:
    by = time.monotonic() + 30
    while any(hosts.processes().values()):
        assert time.monotonic() < by, hosts.processes()
        time.sleep(0.05)


def counting(hosts: Hosts, folder: Path) -> str:
    """An ssh that writes a line for each session."""
    wrapper = folder / "ssh"
    wrapper.write_text(f'#!/bin/sh\necho session >> {folder}/sessions\nexec {hosts.ssh} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def test_scale_names_what_the_border_costs_over_one_session_a_host(hosts: Hosts, folder: Path) -> None:
    ssh = counting(hosts, folder)
    line = typed(hosts, "scale", "-n", "1,2,4", "--repeat", "3", "--steps", "10", "widest.py", each=2, ssh=ssh)
    done = subprocess.run(line, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (folder / "sessions").read_text().split() == ["session"] * 2, "two hosts, one session each for all trials"
    assert [(point["workers"], point["hosts"]) for point in found["points"]] == [(1, 1), (2, 1), (4, 2)]
    assert found["same_numbers"]["same"]
    border = found["border"]
    assert (border["workers"], border["hosts"]) == (2, 2)
    # Gradients of 4 MB over 100 Mbit/s take a third of a second: far more than the step within a host.
    assert border["kept"] < 0.5
    assert not border["tied"]
    assert max(border["lost"], key=border["lost"].get) == "communication"
    nothing_is_left(hosts)


def test_sweep(hosts: Hosts, folder: Path) -> None:
    found = document(hosts, "sweep", "--from", "24", "--to", "48", "--repeat", "1", "--steps", "20", "train.py")
    assert {point["batch"] for point in found["points"]} >= {24, 48}
    trial = next((Path(found["record"]) / "trials").iterdir())
    run = json.loads((trial / "run.json").read_text())
    assert [host["name"] for host in run["topology"]["hosts"]] == hosts.names
    assert len(run["workers"]) == 2


def test_converge(hosts: Hosts, folder: Path) -> None:
    found = document(hosts, "converge", "--emulate", "2", "--seeds", "1", "--techniques", "lr_scale", "train.py")
    assert [row["accuracy"]["mean"] for row in found["rows"]] == [0.5] * 3


def test_tune_tries_what_goes_between_hosts_and_prints_a_command_for_them(hosts: Hosts, folder: Path) -> None:
    line = typed(hosts, "tune", "--budget", "200s", "--threads", "1", "--only", "compression", "wide.py")
    done = subprocess.run(line, capture_output=True, text=True, timeout=380)
    found = json.loads(done.stdout)
    [row] = found["mods"]
    assert (row["mod"], row["after"] > 0) == ("compression=bf16", True), done.stderr
    trial = json.loads((Path(found["record"]) / "trials" / "compression=bf16.r1" / "run.json").read_text())
    assert trial["settings"]["compression"] == "bf16"
    assert not any("has no effect" in notice for notice in trial["outcome"]["notices"])
    for command in (found["command"], found["spelled_out"]):
        assert f"--hosts {hosts.spec(1)} --ssh '{hosts.ssh}'" in command
    nothing_is_left(hosts)


def test_bandwidth_and_topo_have_a_row_between_the_hosts(hosts: Hosts, folder: Path) -> None:
    found = document(hosts, "bandwidth", "--quick", "--sizes", "64K", "--ops", "all_reduce", each=2)
    between = [pair for pair in found["pairs"] if pair["between"] == "hosts"]
    [pair] = between
    assert (found["hosts"], pair["a"], pair["b"]) == (hosts.names, 0, 1)
    assert 0.5 * LINK / 8e3 < pair["gb_per_s"] < 1.1 * LINK / 8e3
    within = [pair for pair in found["pairs"] if pair["between"] == "workers"]
    assert {(pair["a"], pair["b"]) for pair in within} == {(0, 1), (2, 3)}
    assert {each["backend"] for each in found["collectives"]} == {"gloo", "network", "hosts"}
    found = document(hosts, "topo", each=2)
    assert [host["name"] for host in found["hosts"]] == hosts.names
    [pair] = found["between"]
    assert 0.5 * LINK / 8e3 < pair["gb_per_s"] < 1.1 * LINK / 8e3


AHEAD = 7.0  # seconds


def test_the_slow_one_of_three_hosts_is_seen(three: Hosts, folder: Path) -> None:
    found = document(three, "topo")
    rates = {(pair["a"], pair["b"]): pair["gb_per_s"] for pair in found["between"]}
    assert rates.keys() == {(0, 1), (0, 2), (1, 2)}
    # What the third one sends is slow, and it answers both others; what is sent to it is not.
    both = {(pair["a"], pair["b"]): pair["both_ways_gb_per_s"] for pair in found["between"]}
    assert both[0, 1] > 1.5 * max(both[0, 2], both[1, 2])


def test_ctrl_c_ends_the_agents_and_keeps_the_trials(hosts: Hosts, folder: Path) -> None:
    line = typed(hosts, "sweep", "--from", "24", "--steps", "20", "train.py")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    next(text for text in process.stderr if "samples/s" in text)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130, err
    nothing_is_left(hosts)
    assert (Path(json.loads(out)["record"]) / "journal.jsonl").read_text()


def test_profile_aligns_the_clocks(hosts: Hosts, folder: Path) -> None:
    """The clock of the second host is wrong: its agent and its workers are told so by a `sitecustomize`."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(f"import time\nreal = time.time\ntime.time = lambda: real() + {AHEAD}\n")
    wrapper = folder / "ssh"
    wrapper.write_text(
        f"#!{sys.executable}\nimport os, sys\nwords = sys.argv[1:]\nif {hosts.names[1]!r} in words:\n"
        f"    words[-1] = words[-1].replace('PYTHONPATH=', 'PYTHONPATH={site}:')\n"
        f"words = {hosts.ssh.split()!r} + words\nos.execvp(words[0], words)\n"
    )
    wrapper.chmod(0o755)
    found = document(hosts, "profile", "--steps", "3", "train.py", ssh=str(wrapper))
    right, wrong = found["clocks"]
    assert [right["host"], wrong["host"]] == hosts.names
    assert abs(right["offset"]) <= right["error"] < 0.5
    assert abs(wrong["offset"] - AHEAD) <= wrong["error"] < 0.5
    steps = [json.loads(line) for line in (Path(found["record"]) / "steps.rank1.jsonl").read_text().splitlines()]
    mine = [json.loads(line) for line in (Path(found["record"]) / "steps.rank0.jsonl").read_text().splitlines()]
    apart = steps[0]["at"] - mine[0]["at"]
    assert abs(apart - AHEAD) < 2.0, "the record holds what each host's clock showed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sweep", "--hosts", "nowhere.invalid:2", "train.py"), "nowhere.invalid"),
        (("scale", "-n", "2,64", "--hosts", "a:4,b:4", "train.py"), "-n 64: the hosts have 8 workers in all"),
        (("tune", "--hosts", "a:0", "train.py"), "gives a no worker"),
        (("bandwidth", "--hosts", "a:2,b:2", "--backends", "memory"), "--backends memory"),
        (("topo", "--hosts", "a,b", "--choose", "2"), "--choose is about one machine"),
    ],
)
def test_what_cannot_be_is_told_of(folder: Path, words: tuple[str, ...], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "paceline", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["scale", "sweep"])
def test_a_host_that_is_lost_in_the_middle_leaves_the_trials_before(hosts: Hosts, folder: Path, verb: str) -> None:
    options = ("-n", "1,2") if verb == "scale" else ("--from", "24", "--to", "48", "--repeat", "1")
    line = typed(hosts, verb, *options, "--steps", "200", "train.py")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for text in process.stderr:
        said += text
        if "samples/s" in text and ("2 workers" in text or verb == "sweep"):
            break
    for pid in hosts.pids(1):
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    said += err
    assert process.returncode == 1
    assert f"The host {hosts.names[1]}" in said
    assert "Traceback" not in said
    nothing_is_left(hosts)
    record = Path(json.loads(out)["record"])
    if verb == "scale":
        assert [point["workers"] for point in json.loads((record / "verdict.json").read_text())["points"]] == [1, 2]
        return
    assert f"--resume {record}" in said
    before = len((record / "journal.jsonl").read_text().splitlines())
    done = subprocess.run([*line[:-1], "--resume", str(record), line[-1]], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len((record / "journal.jsonl").read_text().splitlines()) > before > 0
    nothing_is_left(hosts)
