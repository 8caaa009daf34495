"""A long run on three hosts under random faults: no number changes, nothing is left, nothing grows.

    sudo python benchmarks/soak_hosts.py /var/tmp/soak --seed 1 --minutes 60
    sudo python benchmarks/soak_hosts.py /var/tmp/soak --seed 1 --minutes 60     # goes on: the next piece

Three network namespaces are hosts with two workers each, under `paceline run --elastic 1:6 --save-every 100 --resume
auto`. A fault comes every 20 s on average, drawn from the seed and the number of the piece:

- a worker, an agent or the controller is killed; the controller is started again and goes on from the last save;
- a worker is frozen (1 to 4 s), or all of a host (1 to 15 s: after 10 it is lost);
- the link of a host is cut (1 to 15 s);
- the disk of the record, a small tmpfs, is full (2 to 10 s);
- the disk of a host is slow: each call that opens or replaces a file, or waits for the disk, takes 0.3 s longer (5 to
  15 s);
- the clock of a host jumps, up to a day ahead or back, and stays there.

The last two are made inside of the host's Python processes (`sitecustomize`): the machine's own clock and disks stay as
they are. At the end of a piece the run is told to end (SIGTERM) and saves. Then each printed loss of all pieces is
compared with plain Python's, and processes and temporary files that were left are counted. Descriptors, threads and
memory of the controller and of the agents are read every 5 s: the table compares the youngest tenth of the readings of
the longest life with its oldest tenth. `FOLDER/soak.log` tells each fault with its time.

Needs root and `ip`; no sshd.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from side_by_side import PACELINE, ROOT

sys.path.insert(0, str(ROOT / "tests" / "launch"))
import namespaces
from namespaces import Hosts

DISK = 48 << 20  # bytes
WORKERS = 2  # on each host
SCRIPT = """
import sys, time, torch, paceline
from torch import nn
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
state = paceline.Elastic(model, optimizer, step=0)
while state.step < int(sys.argv[1]):
    x = torch.randn(24, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(state.step, f"{loss.item():.9f}", flush=True)
    state.step += 1
    time.sleep(float(sys.argv[2]))
    state.commit()
"""
# What a host's Python processes see: FOLDER/faults/slow.N and clock.N, where N is the number of the network namespace.
INSIDE = """
import os, time
_here = f"{faults}/%s." + str(os.stat("/proc/self/ns/net").st_ino)
_slow, _clock, _time, _read, _stat = _here % "slow", _here % "clock", time.time, os.read, os.stat
_asked, _ahead = [float("-inf")], [0.0]

def _late(call):
    def called(*args, **kwargs):
        try:
            _stat(_slow)
        except OSError:
            pass
        else:
            time.sleep(0.3)
        return call(*args, **kwargs)
    return called

for _name in ("replace", "fsync", "fdatasync", "open"):
    setattr(os, _name, _late(getattr(os, _name)))

def _now():
    if time.monotonic() - _asked[0] > 1:
        _asked[0] = time.monotonic()
        try:
            with open(_clock) as file:
                _ahead[0] = float(file.read() or 0)
        except (OSError, ValueError):
            pass
    return _time() + _ahead[0]

time.time = _now
"""


class Log:
    """What happened, one line each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        self._file.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._begun:8.1f} s  {text}\n")


class Run:
    """The controller, started again whenever it has been killed."""

    def __init__(self, folder: Path, disk: Path, hosts: Hosts, log: Log) -> None:
        self._folder, self._log = folder, log
        self._command = [*PACELINE, "run", "--hosts", hosts.spec(WORKERS), "--ssh", hosts.ssh, "--quiet"]
        self._command += ["--elastic", f"1:{len(hosts.names) * WORKERS}", "--save-every", "100", "--resume", "auto"]
        self._command += ["--restarts", "1000", "--save-to", str(folder / "saves"), "--record", str(disk / "runs")]
        self._command += ["train.py", "10000000", "0.02"]
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        path = os.pathsep.join([str(folder / "inside"), str(ROOT / "src")])
        self._environment = os.environ | {"PYTHONPATH": path, "TMPDIR": str(temporary)}
        self.starts = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with (self._folder / "out").open("ab") as out, (self._folder / "err").open("ab") as err:
            return subprocess.Popen(self._command, cwd=self._folder, env=self._environment, stdout=out, stderr=err)

    def go_on(self) -> bool:
        """Starts it again if it has ended; returns whether it had."""
        code = self.process.poll()
        if code is None:
            return False
        self._log(f"the controller has ended with code {code}, and is started again")
        self.process = self._start()
        return True

    def until_steps(self, seconds: float = 120) -> None:
        """Waits until the script prints again."""
        out, by = self._folder / "out", time.monotonic() + seconds
        before = out.stat().st_size
        while out.stat().st_size == before and self.process.poll() is None and time.monotonic() < by:
            time.sleep(0.1)

    def end(self) -> int:
        self.until_steps()
        self.process.terminate()
        try:
            return self.process.wait(180)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Readings(threading.Thread):
    """What the controller and the agents hold, by process."""

    def __init__(self, run: Run, hosts: Hosts) -> None:
        super().__init__(daemon=True)
        self._run, self._hosts, self.over = run, hosts, threading.Event()
        self.lives: dict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)

    def run(self) -> None:
        while not self.over.wait(5):
            self._read("controller", self._run.process.pid)
            for number in range(len(self._hosts.names)):
                for agent in agents(self._hosts, number):
                    self._read("agent", agent)

    def _read(self, what: str, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            held = process.num_fds(), process.num_threads(), process.memory_info().rss >> 20
            self.lives[what, pid].append(held)

    def table(self) -> Iterator[str]:
        for what in ("controller", "agent"):
            longest = max((seen for (name, _), seen in self.lives.items() if name == what), key=len, default=[])
            tenth = max(1, len(longest) // 10)
            for number, name in enumerate(("descriptors", "threads", "memory, MB")):
                values = [seen[number] for seen in longest]
                if values:
                    young, old = (
                        statistics.median(values[tenth : 2 * tenth] or values),
                        statistics.median(values[-tenth:]),
                    )
                    told = f"{young:6.0f} young, {old:6.0f} old, {max(values):6.0f} at most, in a life of "
                    yield f"  {what:10} {name:12} {told}{5 * len(values)} s"


def agents(hosts: Hosts, number: int) -> list[int]:
    found = []
    for pid in hosts.pids(number):
        with contextlib.suppress(psutil.Error):
            if "paceline.launch.cluster.agent" in psutil.Process(pid).cmdline():
                found.append(pid)
    return found


def workers(hosts: Hosts, number: int) -> list[int]:
    """A worker was forked by the agent's zygote, whose command it has, and leads a process group."""
    found = []
    for pid in hosts.pids(number):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process = psutil.Process(pid)
            parent = process.parent()
            if parent is None or "zygote" not in " ".join(parent.cmdline()) or os.getpgid(pid) != pid:
                continue
            if parent.cmdline() == process.cmdline():
                found.append(pid)
    return found


class Faults:
    """Each method is a fault, and returns what it did; empty if it could not."""

    def __init__(self, run: Run, hosts: Hosts, folder: Path, disk: Path, chance: random.Random) -> None:
        self._run, self._hosts, self._folder, self._disk, self._chance = run, hosts, folder, disk, chance
        self.kinds: dict[str, tuple[float, Callable[[], str]]] = {
            "worker killed": (4, self._kill_worker),
            "worker frozen": (3, self._freeze_worker),
            "agent killed": (1, self._kill_agent),
            "host frozen": (2, self._freeze_host),
            "link cut": (3, self._cut),
            "disk full": (2, self._fill),
            "disk slow": (2, self._slow),
            "clock jump": (2, self._jump),
            "controller killed": (1, self._kill_controller),
        }

    def one(self) -> tuple[str, str]:
        names = list(self.kinds)
        kind = self._chance.choices(names, [self.kinds[name][0] for name in names])[0]
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            return kind, self.kinds[kind][1]()
        return kind, ""

    def _host(self) -> int:
        return self._chance.randrange(len(self._hosts.names))

    def _worker(self) -> int:
        found = workers(self._hosts, self._host())
        return self._chance.choice(found) if found else 0

    def _kill_worker(self) -> str:
        if not (pid := self._worker()):
            return ""
        os.kill(pid, signal.SIGKILL)
        return f"process {pid}"

    def _freeze_worker(self) -> str:
        return self._stopped([pid] if (pid := self._worker()) else [], self._chance.uniform(1, 4))

    def _kill_agent(self) -> str:
        found = agents(self._hosts, host := self._host())
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return f"host {host}" if found else ""

    def _freeze_host(self) -> str:
        return self._stopped(self._hosts.pids(self._host()), self._chance.uniform(1, 15))

    def _stopped(self, pids: list[int], seconds: float) -> str:
        stopped = []
        try:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
            time.sleep(seconds if pids else 0.0)
        finally:
            for pid in reversed(stopped):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        return f"{len(stopped)} processes for {seconds:.1f} s" if stopped else ""

    def _cut(self) -> str:
        space, seconds = self._hosts.spaces[self._host()], self._chance.uniform(1, 15)
        try:
            namespaces.run("ip", "-n", space, "link", "set", "eth0", "down")
            time.sleep(seconds)
        finally:
            namespaces.run("ip", "-n", space, "link", "set", "eth0", "up")
        return f"{space} for {seconds:.1f} s"

    def _fill(self) -> str:
        seconds, filling = self._chance.uniform(2, 10), self._disk / "filling"
        with contextlib.suppress(OSError), filling.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
        time.sleep(seconds)
        filling.unlink()
        return f"for {seconds:.1f} s"

    def _slow(self) -> str:
        flag, seconds = self._flag("slow"), self._chance.uniform(5, 15)
        flag.touch()
        time.sleep(seconds)
        flag.unlink()
        return f"{flag.name} for {seconds:.1f} s"

    def _jump(self) -> str:
        flag, seconds = self._flag("clock"), self._chance.uniform(-86400, 86400)
        flag.write_text(str(seconds))
        return f"{flag.name} by {seconds:.0f} s"

    def _flag(self, what: str) -> Path:
        space = self._hosts.spaces[self._host()]
        line = ["ip", "netns", "exec", space, "stat", "-Lc", "%i", "/proc/self/ns/net"]
        number = subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
        return self._folder / "faults" / f"{what}.{number}"

    def _kill_controller(self) -> str:
        self._run.process.kill()
        self._run.process.wait()
        return f"process {self._run.process.pid}"


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    namespaces.run("mount", "-t", "tmpfs", "-o", f"size={DISK}", "soak", str(at))
    try:
        yield at
    finally:
        namespaces.run("umount", "-l", str(at))


def wrong_lines(folder: Path) -> tuple[int, int, list[str]]:
    """Of all printed lines: how many, up to which step, and those that plain Python prints otherwise, or not."""
    printed = (folder / "out").read_text().splitlines()
    steps = 1 + max((int(line.split()[0]) for line in printed if len(line.split()) == 2), default=-1)
    line = [sys.executable, "train.py", str(steps), "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    plain = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout
    right = plain.splitlines()
    missing = [f"missing: {line}" for line in sorted(set(right) - set(printed))]
    return len(printed), steps, [line for line in printed if line not in set(right)] + missing


def main() -> None:
    parser = argparse.ArgumentParser(description="Disturb a long run on three hosts, and compare its numbers.")
    parser.add_argument("folder", type=Path, help="for the script, its output, saves and the log; made if missing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="of this piece")
    parser.add_argument("--every", type=float, default=20, help="seconds between two faults, on average")
    args = parser.parse_args()
    if why := namespaces.why_not(over_ssh=False):
        sys.exit(why)
    folder: Path = args.folder.resolve()
    for each in (folder, folder / "inside", folder / "faults"):
        each.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "inside" / "sitecustomize.py").write_text(INSIDE.replace("{faults}", str(folder / "faults")))
    log, count = Log(folder / "soak.log"), Counter[str]()
    with (folder / "pieces").open("a+") as pieces:
        pieces.seek(0)
        piece = len(pieces.readlines()) + 1
        pieces.write(f"{time.time():.0f}\n")
    chance = random.Random(f"{args.seed} {piece}")
    log(f"piece {piece} of seed {args.seed}, {args.minutes} minutes")
    begun = time.monotonic()
    with small_disk(folder / "disk") as disk, namespaces.hosts(folder, 3, over_ssh=False) as hosts:
        run = Run(folder, disk, hosts, log)
        readings = Readings(run, hosts)
        readings.start()
        faults = Faults(run, hosts, folder, disk, chance)
        while time.monotonic() - begun < 60 * args.minutes:
            time.sleep(min(chance.expovariate(1 / args.every), 60 * args.minutes))
            if not run.go_on():
                if chance.random() < 0.7:  # the others come at any moment, also while the run starts
                    run.until_steps()
                kind, did = faults.one()
                count[kind] += bool(did)
                log(f"{kind}: {did or 'could not be made now'}")
        run.go_on()
        ended = run.end()
        log(f"told to end: code {ended}")
        readings.over.set()
        readings.join()
        by = time.monotonic() + 60
        while any(hosts.processes().values()) and time.monotonic() < by:
            time.sleep(0.2)
        left = [f"{name}: {line}" for name, lines in hosts.processes().items() for line in lines]
    left += [str(path) for path in (folder / "tmp").iterdir() if not path.name.startswith("torchinductor")]
    lines, steps, wrong = wrong_lines(folder)
    told = [f"piece {piece}, seed {args.seed}: {(time.monotonic() - begun) / 60:.1f} minutes, {run.starts} starts"]
    told += ["faults: " + (", ".join(f"{number} {kind}" for kind, number in count.most_common()) or "none")]
    told += [f"all pieces: {lines:,} lines, {steps:,} steps; {len(wrong)} differ from plain python's"]
    told += list(readings.table())
    told += [f"left behind: {', '.join(left) or 'nothing'}", f"exit code {ended}"]
    for text in told:
        log(text)
        print(text)
    if wrong or left or ended != 75:
        print("\n".join(wrong[:10]))
        print((folder / "err").read_text()[-3000:])
        sys.exit(1)


if __name__ == "__main__":
    main()
