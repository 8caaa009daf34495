"""Four workers, one of which is five times slower: the asynchronous parameter server against synchronous all-reduce.

    python benchmarks/slow_worker.py --data DIR                       # the real Fashion-MNIST: DIR holds fashion-mnist
    python benchmarks/slow_worker.py --train-size 10000 --epochs 2    # drawn pictures, shorter

Trains examples/cnn.py, unmodified but for a delay: on worker 3 the model's first layer sleeps four times as long as the
model takes to train on the same rows, which is measured first. Both sides train on the same number of samples, in
batches of 256 per update (`--batch`). `mirrored` divides each batch among the workers, and all wait for the slow one.
`server` is `--strategy "server(staleness=inf,deal=free)"`. Samples per second are those of all workers between the
first and the last step of rank 0; test accuracy is that of the last epoch. Sides alternate.

Figures, real Fashion-MNIST, 3 epochs, 2 cores of a quiet machine, three rounds (seeds 0 to 2): server 1,897, 1,847 and
1,793 samples/s, mirrored 769, 797 and 799: **2.32 (2.25 – 2.47) × as fast** (aim 2). Test accuracy 0.8779, 0.8700 and
0.8695 against 0.8876, 0.8827 and 0.8817: **1.0, 1.3 and 1.2 points below** (aim 1). With more seeds, in the simulation
of stale_gradients.py: 0.86. The rules before, one run each, 2 epochs but for the last:

                                                       seed   server   synchronous   points
    lr / staleness (correction=rate)                   0      0.802    0.872         -7.0
    dana,fresh,clip                                    0      0.856    0.872         -1.6
    dana,fresh,clip,quicker                            1      0.859    0.874         -1.5
    dana,fresh,clip,quicker,steady                     1      0.860    0.874         -1.4
    dana,fresh,clip=3,quicker,steady                   0      0.849    0.872         -2.2
    dana,fresh,clip=3,quicker,steady                   1      0.855    0.874         -1.9
    dana,fresh,clip,quicker,steady, 3 epochs           0      0.866    0.888         -2.1

The names are those of stale_gradients.py. Synchronous is mirrored for seed 0, and plain Python for seed 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from side_by_side import PACELINE, ROOT, ratio, run, samples_per_s

from paceline.record import read_steps
from paceline.record.servers import read_reports

SERVER = "server(staleness=inf,deal=free)"
SLOW = """
import runpy, sys, time
import torch
from paceline.settings import of_this_process

plain = torch.nn.Conv2d.forward

def forward(self, rows):
    if self.training and torch.is_grad_enabled() and rows.shape[1] == {channels}:
        time.sleep({delay} * len(rows))
    return plain(self, rows)

if of_this_process().rank == {rank}:
    torch.nn.Conv2d.forward = forward
sys.argv[0] = {script!r}
sys.path.insert(0, {folder!r})
runpy.run_path({script!r}, run_name="__main__")
"""
BATCH = 256


class Trained:
    """What one run reached."""

    def __init__(self, strategy: str, script: Path, workers: int, arguments: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [*PACELINE, "run", "-n", str(workers), "--strategy", strategy, "--threads", "1"]
            done = subprocess.run(
                [*command, str(script), *arguments],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, PATHS))},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise SystemExit(f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            (record,) = (path for path in Path(folder, "paceline-runs").iterdir() if path.is_dir())
            steps = [read_steps(record, rank) for rank in range(workers)]
            counted = steps[:1] if strategy == "mirrored" else steps
            began, ended = max(each[0].at for each in steps if each), steps[0][-1].at
            self.samples = sum(step.samples for each in counted for step in each)
            self.rate = sum(s.samples for each in counted for s in each if began < s.at <= ended) / (ended - began)
            self.staleness = {s: n for report in read_reports(record) for s, n in report.staleness.items()}
            epochs = [line for line in done.stdout.splitlines() if "test accuracy" in line]
            self.accuracy = float(epochs[-1].split()[-1])


PATHS = [path for path in (str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if path]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", help="folder of the real data sets")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=BATCH, help="samples per update")
    parser.add_argument("--train-size", type=int, default=None)
    parser.add_argument("--test-size", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", "--workers", type=int, default=4)
    parser.add_argument("--slower", type=float, default=5.0, help="how much slower the last worker is")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    script = ROOT / "examples" / "cnn.py"
    data = ["--data", str(Path(options.data).resolve())] if options.data else []
    sizes = ["--train-size", str(options.train_size)] if options.train_size else []
    sizes += ["--test-size", str(options.test_size)] if options.test_size else []
    measured = run(
        [
            PACELINE[0],
            str(script),
            *data,
            "--epochs",
            "1",
            "--train-size",
            "6400",
            "--test-size",
            "500",
            "--log-every",
            "5",
        ],
        {"OMP_NUM_THREADS": "1"},
    )
    alone = samples_per_s(measured, BATCH, 25, 5)
    print(
        f"one worker alone, one thread: {alone:.0f} samples/s; "
        f"worker {options.workers - 1}: {alone / options.slower:.0f} samples/s"
    )
    sides: dict[str, list[Trained]] = {"mirrored": [], SERVER: []}
    with tempfile.TemporaryDirectory() as folder:
        slow = Path(folder) / "slow_cnn.py"
        delay = (options.slower - 1) / alone
        places = {"script": str(script), "folder": str(script.parent)}
        slow.write_text(SLOW.format(channels=1, delay=delay, rank=options.workers - 1, **places))
        for number in range(options.rounds):
            for strategy in list(sides) if number % 2 == 0 else reversed(sides):
                arguments = [*data, *sizes, "--epochs", str(options.epochs), "--seed", str(number)]
                arguments += ["--batch-size", str(options.batch)]
                found = Trained(strategy, slow, options.workers, arguments)
                sides[strategy].append(found)
                print(f"  {strategy:<32} {found.rate:7.0f} samples/s  accuracy {found.accuracy:.4f}  ", end="")
                print(f"{found.samples} samples", flush=True)
    ours, theirs = sides[SERVER], sides["mirrored"]
    faster = ratio([one.rate for one in ours], [one.rate for one in theirs])
    better = [100 * (a.accuracy - b.accuracy) for a, b in zip(ours, theirs, strict=True)]
    print(f"server / mirrored: {faster} × as fast")
    print(f"accuracy: {statistics.median(better):+.2f} points ({min(better):+.2f} – {max(better):+.2f})")
    print("staleness of the updates:", dict(sorted(ours[-1].staleness.items())))
    if options.json:
        speed = [faster.median, faster.low, faster.high]
        print(json.dumps({"faster": speed, "accuracy_points": better, "staleness": ours[-1].staleness}))


if __name__ == "__main__":
    main()
