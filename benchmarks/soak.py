"""A long run whose workers are killed and frozen again and again: nothing is left behind, and no number changes.

    python benchmarks/soak.py --minutes 30
    python benchmarks/soak.py --minutes 30 --hosts 2

Four workers under `paceline run --elastic 1:4`; a fault comes every 30 s on average: a worker is killed (two of three
times), or frozen for up to three seconds. Lost workers are replaced at the next commit. The printed lines, with the
loss and the samples of every step, are compared with those of plain python. Descriptors, threads, memory and sockets of
the launcher and its zygote, and the number of processes, are read every few seconds.

With `--hosts`, the workers belong to so many agents on this machine, which are hosts to a run. One fault of six then
kills an agent, and with it the host's workers; the host is taken back at a commit.

Figures, 2 cores with a load of 5 to 40 from other work, `--minutes 15`: 69 minutes, 83 workers killed, 37 frozen, 79
starts; all 18,000 lines as plain python prints them; 43 descriptors, 6 threads, 11 sockets and 369 MB in the first
tenth and in the last; nothing left behind. With `--minutes 5 --hosts 2`, load 5 to 10: 13.7 minutes, 18 workers and 4
agents killed, 1 worker frozen, 20 starts; all 6,000 lines as plain python prints them; 126 descriptors in the first
tenth and never more than 131, 24 threads and 24 sockets and never more, 745 MB and never more than 747 (launcher, two
agents and their zygotes); nothing left behind.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
from side_by_side import PACELINE

STEP = 0.05  # seconds that a step sleeps
SCRIPT = """
import sys, time
import torch, paceline
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

epochs, pause = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
data = TensorDataset(torch.arange(6400), torch.randn(6400, 32), torch.randn(6400, 4))
model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = DataLoader(data, batch_size=64, shuffle=True)
state = paceline.Elastic(model, optimizer, loader, epoch=0)
while state.epoch < epochs:
    for ids, x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(state.epoch, f"{loss.item():.9f}", *ids.tolist(), flush=True)
        time.sleep(pause)
        state.commit()
    state.epoch += 1
"""


class Faults(threading.Thread):
    """Kills and freezes workers until the run has ended, and reads what its processes hold."""

    def __init__(self, leader: int, every: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._leader, self._every, self._chance = psutil.Process(leader), every, random.Random(seed)
        self.killed = self.frozen = self.lost = 0
        self.seen: list[dict[str, int]] = []

    def run(self) -> None:
        at = time.monotonic() + self._every
        while True:
            time.sleep(3)
            try:
                self._look()
                if time.monotonic() >= at:
                    at = time.monotonic() + self._chance.expovariate(1 / self._every)
                    self._disturb()
            except psutil.NoSuchProcess:
                if not self._leader.is_running() or self._leader.status() == psutil.STATUS_ZOMBIE:
                    return

    def _look(self) -> None:
        tree = [self._leader, *(child for child in self._leader.children(recursive=True) if not _is_worker(child))]
        self.seen.append(
            {
                "descriptors": sum(each.num_fds() for each in tree),
                "threads": sum(each.num_threads() for each in tree),
                "sockets": sum(len(each.net_connections("all")) for each in tree),
                "memory, MB": sum(each.memory_info().rss for each in tree) >> 20,
                "processes": 1 + len(self._leader.children(recursive=True)),
            }
        )

    def _disturb(self) -> None:
        children = self._leader.children(recursive=True)
        workers, agents = list(filter(_is_worker, children)), list(filter(_is_agent, children))
        if len(workers) < 2:
            return  # the run starts again
        victim, lot = self._chance.choice(workers), self._chance.random()
        if len(agents) > 1 and lot > 5 / 6:
            agent = self._chance.choice(agents)
            if all(agent in worker.parents() for worker in workers):
                return
            agent.kill()
            self.lost += 1
        elif lot < 2 / 3:
            victim.kill()
            self.killed += 1
        else:
            victim.suspend()
            time.sleep(self._chance.uniform(0.2, 3))
            victim.resume()
            self.frozen += 1


def _is_agent(process: psutil.Process) -> bool:
    return "paceline.launch.cluster.agent" in process.cmdline()


def _is_worker(process: psutil.Process) -> bool:
    """Whether it was forked by a zygote, whose name it has then."""
    parent = process.parent()
    return parent is not None and parent.cmdline() == process.cmdline() and not _is_agent(process)


def main() -> None:
    parser = argparse.ArgumentParser(description="Disturb a long run, and look for what it leaves behind.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--every", type=float, default=30, help="seconds between two faults, on average")
    parser.add_argument(
        "--hosts", type=int, default=0, choices=(0, 1, 2), help="agents that the workers belong to; 0: no agents"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    epochs = max(1, round(args.minutes * 60 / STEP / 100))
    shm = set(Path("/dev/shm").iterdir())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        plain = [sys.executable, "train.py", str(epochs), "0"]
        expected = subprocess.run(plain, cwd=folder, capture_output=True, text=True, check=True).stdout
        n = str(args.workers)
        names = ["localhost", "127.0.0.1"][: args.hosts]
        spec = ",".join(f"{name}:{args.workers // args.hosts}" for name in names)
        where = ["--hosts", spec, "--save-every", "50"] if args.hosts else ["-n", n, "--oversubscribe"]
        command = [*PACELINE, "run", *where, "--elastic", f"1:{n}", "--quiet"]
        begun = time.monotonic()
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            run = subprocess.Popen([*command, "train.py", str(epochs), str(STEP)], cwd=folder, stdout=out, stderr=err)
            faults = Faults(run.pid, args.every, args.seed)
            faults.start()
            code = run.wait()
        minutes = (time.monotonic() - begun) / 60
        printed, said = (folder / "out").read_text(), (folder / "err").read_text()
    print(f"{minutes:.1f} minutes, exit code {code}; {faults.killed} workers killed, {faults.frozen} frozen, ", end="")
    print(f"{faults.lost} agents killed; {said.count('starts again')} starts; {epochs * 100:,} steps")
    print(f"lines as plain python prints them: {'all' if printed == expected else 'NO'} of {expected.count(chr(10)):,}")
    tenth = max(1, len(faults.seen) // 10)
    for what in faults.seen[0] if faults.seen else ():
        values = [seen[what] for seen in faults.seen]
        first, last = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        print(f"  {what:12} {first:6.0f} in the first tenth, {last:6.0f} in the last, {max(values)} at most")
    alive = [p for p in psutil.process_iter(["cmdline"]) if "train.py" in (p.info["cmdline"] or [])]
    print(f"left behind: {len(alive)} processes, {len(set(Path('/dev/shm').iterdir()) - shm)} files in shared memory")
    if code or printed != expected:
        print(said[-3000:])
        sys.exit(1)


if __name__ == "__main__":
    main()
