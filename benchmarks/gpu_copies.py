"""GPU copy rates: the figures of `paceline bandwidth` against a plain torch loop.

    python benchmarks/gpu_copies.py
    PYTHONPATH=src:.gpu-site python3 benchmarks/gpu_copies.py       # from source; about two minutes

Host to device and device to host, pinned and pageable, and within device memory, 256 MB each. The loop is the obvious
one: synchronise, ten copies, synchronise, timed with the host's clock. Sides alternate; a ratio is the median over
rounds (smallest – largest). Exit code 0 if every median is within 10 % of 1.

Figures, one H200 on PCIe 5 × 16, 3 rounds: host to device 1.000 pinned (55.5 GB/s), 1.003 pageable (8.3); device to
host 1.001 pinned (55.3), 0.993 pageable (15.0); device memory 1.008 (2,014 GB/s copied).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time

from side_by_side import PACELINE, ROOT

SIZE = 256 << 20
COPIES = 10
REPEATS = 7
WITHIN = 0.1


def plain_loop() -> dict[str, float]:
    """GB/s of each path of the first GPU. Runs in its own process, as the other side does."""
    import torch

    device, other = (torch.ones(SIZE, dtype=torch.uint8, device="cuda") for _ in range(2))
    pageable = torch.ones(SIZE, dtype=torch.uint8)
    pinned = torch.ones(SIZE, dtype=torch.uint8).pin_memory()
    paths = {
        "host to device, pinned": (device, pinned),
        "host to device, pageable": (device, pageable),
        "device to host, pinned": (pinned, device),
        "device to host, pageable": (pageable, device),
        "device memory": (other, device),
    }
    found: dict[str, list[float]] = {path: [] for path in paths}
    for turn in range(REPEATS + 1):
        for path, (to, source) in paths.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(COPIES):
                to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            if turn:  # the first is warm-up
                found[path].append(COPIES * SIZE / (time.perf_counter() - begun) / 1e9)
    return {path: statistics.median(rates) for path, rates in found.items()}


def told_by_paceline() -> dict[str, float]:
    """GB/s of each path, measured by `paceline bandwidth`."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PACELINE, "bandwidth", "--only", "devices", "--json", "--quiet", "--record", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    names = {True: ", pinned", False: ", pageable", None: ""}
    copies = [copy for copy in json.loads(done.stdout)["copies"] if copy["gpu"] == 0]
    return {copy["path"] + names[copy["pinned"]]: copy["gb_per_s"] for copy in copies}


def told_by_loop() -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--loop"], stdout=subprocess.PIPE, check=True, cwd=ROOT)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare GPU copy rates of a plain loop and of paceline bandwidth.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    args = parser.parse_args()
    if args.loop:
        print(json.dumps(plain_loop()))
        return 0
    rounds = []
    for number in range(1, args.rounds + 1):
        rounds.append({"paceline": told_by_paceline(), "loop": told_by_loop()})
        print(f"round {number} of {args.rounds}", file=sys.stderr, flush=True)
    close = True
    for path in rounds[0]["loop"]:
        ratios = [each["paceline"][path] / each["loop"][path] for each in rounds]
        middle = statistics.median(ratios)
        close = close and abs(middle - 1) <= WITHIN
        rates = " against ".join(f"{statistics.median(r[side][path] for r in rounds):.1f}" for side in rounds[0])
        print(f"{path:<26} {middle:.3f} ({min(ratios):.3f} – {max(ratios):.3f})   {rates} GB/s")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rounds, file, indent=1)
    print("within 10 %: yes" if close else "within 10 %: no")
    return 0 if close else 1


if __name__ == "__main__":
    sys.exit(main())
