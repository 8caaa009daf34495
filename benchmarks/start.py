"""Start-up time: from the command to the script's first line on all of 4 workers.

    python benchmarks/start.py

Compares, in alternation: `paceline run -n 4 hello.py`, `torchrun --nproc-per-node 4 hello.py`, and
`python -c "import torch"` from start to exit, which is the minimum of a single process. Every worker reports the time
of its first line and the time of the finished torch import; the last worker counts.

Figures, 2 idle cores, the last 5 of 9 rounds: paceline 1.69, 2.21, 1.77, 2.20, 1.79 s against 1.81, 2.07, 1.79, 2.22,
2.16 s of `import torch` (1.0 ×; the aim is 1.5), torchrun 2.12, 2.16, 2.06, 2.41, 1.93 s.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time

from side_by_side import PACELINE, ROOT, TORCHRUN, in_turn, ratio, run

HELLO = str(ROOT / "benchmarks" / "hello.py")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time to the first line of a script on all workers.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", metavar="FILE", help="also write every figure to this file")
    args = parser.parse_args()
    with_torch: dict[str, list[float]] = {"paceline": [], "torchrun": []}

    def to_first_line(name: str, command: list[str]) -> float:
        with socket.socket(type=socket.SOCK_DGRAM) as inbox:
            inbox.bind(("127.0.0.1", 0))
            inbox.settimeout(5)
            asked = time.time()
            run([*command, HELLO, str(inbox.getsockname()[1])])
            told = [inbox.recv(100).split() for _ in range(args.workers)]
        with_torch[name].append(max(float(times[1]) for times in told) - asked)
        return max(float(times[0]) for times in told) - asked

    def import_torch() -> float:
        asked = time.time()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        return time.time() - asked

    n = str(args.workers)
    sides = {
        "paceline": lambda: to_first_line("paceline", [*PACELINE, "run", "-n", n, "--quiet", "--oversubscribe"]),
        "torchrun": lambda: to_first_line("torchrun", [*TORCHRUN, "--nproc-per-node", n, "--standalone"]),
        "import torch": import_torch,
    }
    import_torch()  # now the files are in the page cache
    figures = in_turn(sides, args.rounds, "s")
    print(f"first line on {n} workers")
    print(f"  paceline / import torch: {ratio(figures['paceline'], figures['import torch'])}")
    print(f"  torchrun / import torch: {ratio(figures['torchrun'], figures['import torch'])}")
    print(f"torch imported on {n} workers")
    print(f"  paceline / import torch: {ratio(with_torch['paceline'], figures['import torch'])}")
    print(f"  torchrun / import torch: {ratio(with_torch['torchrun'], figures['import torch'])}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"first_line": figures, "with_torch": with_torch}, file, indent=1)


if __name__ == "__main__":
    main()
