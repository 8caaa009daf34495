"""All-reduce over two hosts with a slow link: flat Gloo against the sum by hosts, plain and with bf16.

    sudo python benchmarks/two_hosts.py

The hosts are two network namespaces, joined by a pair of virtual interfaces that `tc` limits to 1 Gbit/s in each
direction; each host has 2 workers with one thread. Sides alternate, in the same processes. Bytes are the kernel's
counts on the link (mean of both directions), in multiples of the tensor. A ratio is the median over rounds (smallest –
largest). Needs root, `ip` and `tc`; always removes the namespaces at the end.

Ranks are ordered host by host, as a launcher does: the best order for Gloo's ring, which crosses the link once in each
direction. `--order spread` alternates ranks between hosts (0 and 2 on one host), as some schedulers do: then every step
of the ring crosses the link.

Figures, 2 idle cores, 3 rounds, 2 workers per host, shared memory within a host: 25 MB 1.423 (1.336 – 1.431) × as fast,
with bf16 2.665 (2.400 – 2.776); 64 MB 1.351 (1.269 – 1.477) and 2.862 (2.707 – 2.917). Earlier, under load (9 rounds;
`--order spread` 5), loopback within a host:

                      sends each way   of Gloo's bytes   25 MB, × as fast      64 MB, × as fast
    flat gloo         1.503            1                 1 (320 ms)            1 (822 ms)
    by hosts          1.003            0.667             1.34 (1.17 – 1.41)    1.37 (1.30 – 1.46)
    by hosts, bf16    0.502            0.334             2.29 (1.75 – 2.65)    2.66 (2.11 – 3.00)
    the same with --order spread, where flat gloo sends 3.007 × the tensor each way:
    by hosts          1.003            0.333             2.69 (2.34 – 2.83)    2.56 (2.48 – 2.62)
    by hosts, bf16    0.502            0.167             4.58 (3.93 – 5.29)    4.67 (3.66 – 5.21)

Why the bytes are not halved: a ring of n workers sends 2 (n - 1)/n times the tensor over the link, which is 1.5 for 4
workers (1.754 was counted for 8; the limit is 2), and an exact sum over two hosts needs at least one. So the sum by
hosts can be at most 1.5 × as fast here without compression, and 3 × with bf16. With no cost within the host, it was
1.41 to 1.48 × and 2.7 to 2.9 × as fast.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from side_by_side import in_turn, ratio

HOSTS = 2
PORT = 29500  # free: nothing else runs in a new namespace
SIDES = ("flat gloo", "by hosts", "by hosts, bf16")


# -- a worker ----------------------------------------------------------------------------------------------------------


def local_of(store: Any, host: int, local_rank: int, local_world: int) -> Any:
    """The part of the sum within a host."""
    from torch.distributed import PrefixStore

    from paceline.comm.hosts import MemoryLocal
    from paceline.comm.memory.engine import MemoryEngine

    return MemoryLocal(MemoryEngine(PrefixStore(f"host{host}", store), local_rank, local_world))


def work(rank: int, host: int, local_rank: int, local_world: int) -> None:
    """One worker: runs a sum for each line on standard input, and answers with its seconds."""
    import time

    import torch
    import torch.distributed as dist

    from paceline.comm.network.compression import Bfloat16
    from paceline.comm.network.hierarchy import all_reduce, connect_lane

    torch.set_num_threads(1)
    world = HOSTS * local_world
    store = dist.TCPStore(address(0), PORT, world, rank == 0)
    dist.init_process_group("gloo", store=dist.PrefixStore("flat", store), rank=rank, world_size=world)
    local = local_of(store, host, local_rank, local_world)
    lane = connect_lane(
        store, "hosts", host=host, hosts=HOSTS, local_rank=local_rank, lanes=local_world, address=address(host)
    )
    by_hosts = partial(all_reduce, local=local, wire=lane, lanes=local_world)
    sides = {
        "flat gloo": dist.all_reduce,
        "by hosts": by_hosts,
        "by hosts, bf16": partial(by_hosts, compressor=Bfloat16()),
    }
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        side, repeat = sides[order["side"]], order["repeat"]
        flats = [torch.full((order["size"],), float(rank)) for _ in range(repeat)]
        dist.barrier()
        began = time.perf_counter()
        for flat in flats:
            side(flat)
        seconds = (time.perf_counter() - began) / repeat
        total = world * (world - 1) / 2  # exact, also in bf16
        assert all(bool((flat == total).all()) for flat in flats), f"{order['side']}: wrong sum"
        print(seconds, flush=True)


# -- the hosts ---------------------------------------------------------------------------------------------------------


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def do(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}: {done.stderr.strip()}\n"
            "Two hosts cannot be created here: this needs root, and a kernel with network namespaces, veth and tbf."
        )
    return done.stdout


@contextlib.contextmanager
def two_hosts(rate: str) -> Iterator[list[str]]:
    """Two namespaces and the link between them, removed at the end."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        raise SystemExit(
            "Two hosts are made with network namespaces: run as root, with ip and tc (iproute2) installed."
        )
    names = [f"paceline-{os.getpid()}-{host}" for host in range(HOSTS)]
    made = []
    try:
        for name in names:
            do("ip", "netns", "add", name)
            made.append(name)
        ends = ["name", link(0), "netns", names[0], "type", "veth", "peer", "name", link(1), "netns", names[1]]
        do("ip", "link", "add", *ends)
        for host, name in enumerate(names):
            do("ip", "-n", name, "addr", "add", f"{address(host)}/24", "dev", link(host))
            do("ip", "-n", name, "link", "set", "lo", "up")
            do("ip", "-n", name, "link", "set", link(host), "up")
            limit = ["tbf", "rate", rate, "burst", "128kb", "latency", "50ms"]
            do("tc", "-n", name, "qdisc", "add", "dev", link(host), "root", *limit)
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False)  # also removes this end of the link


def link(host: int) -> str:
    return f"pl{os.getpid() % 10**7}-{host}"


class Workers:
    """The workers of both hosts, in the order of ranks."""

    def __init__(self, names: list[str], each: int, order: str) -> None:
        self.names, self.processes = names, list[subprocess.Popen[str]]()
        for rank in range(HOSTS * each):
            host, local_rank = divmod(rank, each) if order == "block" else (rank % HOSTS, rank // HOSTS)
            place = [str(number) for number in (rank, host, local_rank, each)]
            self.processes.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", names[host], sys.executable, __file__, "--worker", *place],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "GLOO_SOCKET_IFNAME": link(host), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                    text=True,
                )
            )
        self.answers()

    def answers(self) -> list[str]:
        lines = [process.stdout.readline().strip() for process in self.processes if process.stdout is not None]
        if not all(lines):
            raise SystemExit("A worker failed; its error is above.")
        return lines

    def sum_up(self, side: str, size: int, repeat: int) -> tuple[float, float]:
        """Seconds of the slowest worker, and bytes over the link in each direction, per sum."""
        before = self.crossed()
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"side": side, "size": size, "repeat": repeat}) + "\n")
            process.stdin.flush()
        seconds = max(float(answer) for answer in self.answers())
        return seconds, (self.crossed() - before) / repeat / HOSTS

    def crossed(self) -> int:
        """Bytes that both hosts have sent over the link so far."""
        places = [f"/sys/class/net/{link(host)}/statistics/tx_bytes" for host in range(HOSTS)]
        commands = [["ip", "netns", "exec", name, "cat", place] for name, place in zip(self.names, places, strict=True)]
        return sum(int(do(*command)) for command in commands)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare flat Gloo with a sum by hosts, over two hosts.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=3, help="consecutive sums in each round")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[25, 64])
    parser.add_argument("--workers", type=int, default=2, help="workers on each host")
    parser.add_argument("--order", choices=["block", "spread"], default="block", help="order of ranks over the hosts")
    parser.add_argument("--rate", default="1gbit", help="bandwidth of the link, in tc's notation")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every figure to this file")
    parser.add_argument("--worker", nargs=4, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(*args.worker)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed, too

    everything = {}
    with two_hosts(args.rate) as names:
        workers = Workers(names, args.workers, args.order)
        try:
            for megabytes in args.megabytes:
                everything[f"{megabytes} MB"] = compare(workers, megabytes, args.rounds, args.repeat)
        finally:
            workers.stop()
    if args.json:
        args.json.write_text(json.dumps(everything, indent=1))


def compare(workers: Workers, megabytes: int, rounds: int, repeat: int) -> dict[str, Any]:
    print(f"{megabytes} MB of float32")
    size = megabytes * 1_000_000 // 4
    crossed: dict[str, list[float]] = {side: [] for side in SIDES}

    def measure(side: str) -> float:
        seconds, sent = workers.sum_up(side, size, repeat)
        crossed[side].append(sent / size / 4)
        return seconds * 1000

    for side in SIDES:
        workers.sum_up(side, size, 1)  # warm-up
    figures = in_turn({side: partial(measure, side) for side in SIDES}, rounds, "ms")
    for side in SIDES:
        print(f"  {side}: sends {ratio(crossed[side], [1.0] * rounds)} × the tensor each way")
    for side in SIDES[1:]:
        print(f"  {side}: {ratio(crossed[side], crossed[SIDES[0]])} of flat gloo's bytes, ", end="")
        print(f"{ratio(figures[SIDES[0]], figures[side])} × as fast")
    return {"ms": figures, "times the tensor": crossed}


if __name__ == "__main__":
    main()
