"""A lost worker or host of a run on three hosts: the time until the next step, and what is made again.

    sudo python benchmarks/elastic_hosts.py

The hosts are network namespaces on a bridge, each with an sshd and one worker. On the last host, in turn,

- the worker is killed by SIGKILL;
- the agent is killed by SIGKILL, and its workers end with it, as when a host shuts down: connections are closed;
- the link is taken down: nothing is closed, and only the missing heartbeat tells.

Each fault is met in both ways: from inside (`--elastic 2`), and from the last save (`--elastic 2:3 --save-every 20`
with a strategy that allows no other way).
The figure is the time from the fault to the next line that the script prints. Needs root, `ip` and sshd.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from side_by_side import PACELINE, ROOT

from paceline.record import read_run

sys.path.insert(0, str(ROOT / "tests" / "launch"))
import namespaces
from namespaces import Hosts

AT = 70  # steps before the fault
PATIENCE = 120.0  # seconds for one run as a whole
WAYS = {
    "from inside": ("--elastic", "2"),
    "from the last save": ("--elastic", "2:3", "--save-every", "20", "--strategy", "zero1"),
}
FAULTS = ("worker killed", "agent killed", "link down")
SCRIPT = """
import torch, paceline
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
state = paceline.Elastic(model, optimizer, step=0)
while state.step < 1_000_000:
    x, y = torch.randn(64, 64), torch.randint(0, 9, (64,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(state.step, f"{loss.item():.6f}", flush=True)
    state.step += 1
    state.commit()
"""


def break_host(hosts: Hosts, folder: Path, fault: str) -> None:
    """Let the fault happen on the last host."""
    if fault == "link down":
        subprocess.run(["ip", "-n", hosts.spaces[-1], "link", "set", "eth0", "down"], check=True)
    elif fault == "worker killed":
        (record,) = (folder / "paceline-runs").iterdir()
        os.kill(read_run(record).workers[-1].pid, signal.SIGKILL)
    else:
        line = ["ip", "netns", "pids", hosts.spaces[-1]]
        pids = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()
        (agent,) = (pid for pid in pids if "cluster.agent\0" in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(int(agent), signal.SIGKILL)


def to_next_step(hosts: Hosts, options: tuple[str, ...], fault: str) -> tuple[float, int]:
    """Seconds from the fault to the next step, and the number of steps that are made again.

    The next step is the first that is printed after Paceline has said that it goes on: without the lost worker no step
    could be made before.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        command = [*PACELINE, "run", "--hosts", hosts.spec(1), "--ssh", hosts.ssh, *options, "--quiet", "train.py"]
        run = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert run.stdout is not None
        assert run.stderr is not None
        goes_on = threading.Event()
        listener = threading.Thread(target=listen, args=(run.stderr, goes_on))
        listener.start()
        guard = threading.Timer(PATIENCE, run.kill)
        guard.start()
        last = AT
        try:
            for line in run.stdout:
                if line.startswith(b"%d " % AT):
                    break
            begun = time.monotonic()
            break_host(hosts, folder, fault)
            for line in run.stdout:
                at, step = time.monotonic(), int(line.split()[0])
                if goes_on.is_set():
                    return at - begun, last + 1 - step
                last = step
            return PATIENCE, AT
        finally:
            guard.cancel()
            run.terminate()
            run.stdout.close()
            run.wait()
            listener.join()
            subprocess.run(["ip", "-n", hosts.spaces[-1], "link", "set", "eth0", "up"], check=True)


def listen(said: IO[bytes], goes_on: threading.Event) -> None:
    """Wait for the word that the run goes on, and read all the rest."""
    for line in said:
        if b"goes on with" in line or b"goes on from commit" in line:
            goes_on.set()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time from a lost host to the next step.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=tuple(WAYS), help="one of the two ways")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the namespaces are removed
    if why := namespaces.why_not():
        sys.exit(f"elastic_hosts.py: {why}")
    figures: dict[tuple[str, str], list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as name, namespaces.hosts(Path(name), 3) as hosts:
        for number in range(args.rounds):
            for fault in FAULTS:
                for way, options in WAYS.items():
                    if args.only not in (None, way):
                        continue
                    found = to_next_step(hosts, options, fault)
                    figures.setdefault((fault, way), []).append(found)
                    print(f"  round {number + 1}: {fault}, {way}: {found[0]:.2f} s, {found[1]} steps again", flush=True)
    for (fault, way), found in figures.items():
        times, steps = [each for each, _ in found], [each for _, each in found]
        middle = f"{statistics.median(times):.2f} s ({min(times):.2f} – {max(times):.2f})"
        print(f"{fault:14} {way:19} {middle}, steps made again: {steps}")


if __name__ == "__main__":
    main()
