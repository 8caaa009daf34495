"""Pushes and pulls per second: Paceline's parameter server, one written on torch.distributed.rpc, and all-reduce.

    python benchmarks/parameter_server.py                 # 2 workers, one server
    python benchmarks/parameter_server.py -n 1 --rounds 9

Every side has the same parameters and gradients (the sizes of a ResNet-18, or of the CNN example), and makes the same
update, SGD with momentum, by torch's fused kernel. A step of a worker is one push of all gradients and one pull of all
parameters; nothing else is computed. `rpc`: a server process that holds the parameters, and workers that call
`rpc_sync(server, step, gradients)`, as in torch's tutorial, but with all tensors in one call. `all-reduce`: Gloo's sum
of one flat tensor and an update on every worker, which is synchronous. Sides alternate; the processes of one side
sleep while another runs. `passes` and `update` are bounds: processes without a server, one on each core, that make
the same two copies and the update, or the update alone, and wait for nobody. GB/s counts the bytes of gradients and
parameters, once each; `copy` is a memory copy by one thread.

Figures of a quiet machine with 2 cores, 5 rounds, 2 workers, `correction=none`:

                        pushes+pulls/s   of a copy's speed   processor time each   × as fast as      × less time
    ResNet-18, 46.8 MB                                                             rpc               than rpc
      paceline          41               0.70                32 ms                 1.4 (1.2 – 1.6)   2.1 (2.0 – 2.3)
        --servers 2     45               0.78                34 ms                 1.6 (1.6 – 1.9)   2.2 (2.1 – 2.2)
      rpc               28               0.48                69 ms
      all-reduce        32               0.54                45 ms
    CNN, 1.7 MB
      paceline          1113             0.36                1.4 ms                2.9 (2.2 – 3.2)   3.8 (3.4 – 4.1)
      rpc               385              0.12                5.1 ms
      all-reduce        564              0.18                1.9 ms

With `correction=momentum`, the strategy's default, which this benchmark now uses, 7 to 9 rounds: ResNet-18 33 per s, 38
ms each, 1.17 (1.14 – 1.52) × as fast as rpc with 1.8 × less processor time; CNN 1,055 per s, 1.6 ms each, 2.48 (1.77 –
3.20) × as fast as rpc with 2.9 × less, and 1.88 (1.06 – 2.36) × as fast as all-reduce; a run ten minutes before had 769
per s, 1.84 (1.18 – 2.91) × rpc, with rounds from 496 to 1,265. The norm of the gradients is another pass over them: 4.7
ms of ResNet-18's. For the CNN a server's one thread is the limit: 0.8 ms a push, of which the fused update takes 0.23,
torch's optimizer around it 0.1, the copy 0.14 and the messages 0.08 when nothing else runs; the rest is memory that the
other core has just written. Two servers are slower there: 710 per s.

The aim of 3 × rpc is not reached for the large model, and two copies do not allow it: 70 / 30 = 2.3 is the most, with
both cores busy all the time. 3 × leaves 23 ms, and the update with one copy takes 22. To save a copy was tried by
hand (processor time of one thread for 46.8 MB, machine under load; a copy 8.8 ms, the fused update 13.2 ms):
  - update and copy in pieces of 128 KiB to 1 MiB, so that a piece is still in the cache: 22.1 to 23.6 ms, no less
    than both together;
  - update out of place, into memory that a worker then takes as its parameters: 22.2 to 22.8 ms by a copy and the
    fused kernel in pieces, 20.9 to 23.9 ms by two plain kernels. Writing to other memory costs what the copy costs;
  - the server reads the worker's own gradients (process_vm_readv): 8.1 to 10.7 ms, no less than the worker's copy.
What is left is a gradient that backward itself writes into shared memory. Torch allocates a new one in each backward
(`zero_grad` drops the old one), and a hook can only copy it: the same pass, where this benchmark would not count it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

import torch
from side_by_side import in_turn, ratio

SIDES = ("paceline", "rpc", "all-reduce", "passes", "update")


def shapes(model: str) -> list[tuple[int, ...]]:
    if model == "cnn":
        return [(32, 1, 3, 3), (32,), (64, 32, 3, 3), (64,), (128, 3136), (128,), (10, 128), (10,)]
    found: list[tuple[int, ...]] = [(64, 3, 7, 7), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            found += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            found += [(width, before, 1, 1), (width,), (width,)] if block == 0 and width != 64 else []
            before = width
    return [*found, (1000, 512), (1000,)]


def make(model: str) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes(model)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return parameters


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9, fused=True)


# -- the sides -------------------------------------------------------------------------------------------------------


def answer_requests(step: Any) -> None:
    """Makes as many steps as each line of standard input asks for, and prints the seconds."""
    step()
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - began, flush=True)


def paceline_worker(rank: int, meeting: str, model: str) -> None:
    import msgspec

    from paceline.strategies.parameter_server import Meeting
    from paceline.strategies.server.client import Client
    from paceline.strategies.server.exchange import Exchange

    met = msgspec.json.decode(meeting, type=Meeting)
    client = Client(met.addresses, met.access, rank=rank)
    exchange = Exchange(client, 0, sgd(make(model)), correction="momentum")
    answer_requests(exchange.step)
    client.close()


class RpcServer:
    """As in torch's tutorial on parameter servers, with one call for a push and a pull."""

    held: RpcServer

    def __init__(self, model: str) -> None:
        self.lock = threading.Lock()
        self.parameters = make(model)
        self.optimizer = sgd(self.parameters)


def rpc_step(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    held = RpcServer.held
    with held.lock:
        for parameter, gradient in zip(held.parameters, gradients, strict=True):
            parameter.grad = gradient
        held.optimizer.step()
        return [parameter.detach() for parameter in held.parameters]


def rpc_worker(rank: int, world: int, port: int, model: str) -> None:
    """Rank 0 is the server."""
    import torch.distributed.rpc as rpc

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.modules["parameter_server"] = sys.modules["__main__"]
    for function in (rpc_step, RpcServer):
        function.__module__ = "parameter_server"
    if rank == 0:
        RpcServer.held = RpcServer(model)
    rpc.init_rpc(f"node{rank}", rank=rank, world_size=world)
    if rank:
        parameters = make(model)

        def step() -> None:
            gradients: Any = [parameter.grad for parameter in parameters]
            for parameter, new in zip(parameters, rpc.rpc_sync("node0", rpc_step, args=(gradients,)), strict=True):
                parameter.data = new

        answer_requests(step)
    rpc.shutdown()


def all_reduce_worker(rank: int, world: int, port: int, model: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    parameters = make(model)
    optimizer = sgd(parameters)
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters if parameter.grad is not None])
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)

    def step() -> None:
        dist.all_reduce(flat)
        flat.div_(world)
        optimizer.step()

    answer_requests(step)


def bound_worker(model: str, *, copies: bool) -> None:
    """What any server does to memory, without a server: the gradients copied out of the worker, the update, the new
    parameters copied to the worker; or the update alone. Processes do not wait for each other."""
    parameters = make(model)
    optimizer = sgd(parameters)
    mine = [parameter.grad for parameter in parameters if parameter.grad is not None]
    theirs = [torch.zeros_like(parameter) for parameter in parameters]
    pulled = [torch.zeros_like(parameter) for parameter in parameters]
    if copies:
        for parameter, gradient in zip(parameters, theirs, strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def step() -> None:
        if copies:
            for target, source in zip(theirs, mine, strict=True):
                target.copy_(source)
        optimizer.step()
        if copies:
            for target, parameter in zip(pulled, parameters, strict=True):
                target.copy_(parameter)

    answer_requests(step)


# -- this process ----------------------------------------------------------------------------------------------------


class Side:
    """The processes of one side."""

    def __init__(self, name: str, ranks: range, *arguments: object) -> None:
        command = [sys.executable, __file__, "--side", name]
        self.workers = [
            subprocess.Popen(
                [*command, "--rank", str(rank), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in ranks
        ]
        self.processes = [worker.pid for worker in self.workers]
        self.cpu: list[float] = []  # seconds of processor time per push and pull, in each round
        self.asked = [worker for worker, rank in zip(self.workers, ranks, strict=True) if name != "rpc" or rank]

    def until_ready(self) -> None:
        for worker in self.asked:
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == "ready"

    def rate(self, steps: int) -> float:
        """Pushes and pulls per second, of all workers together."""
        before = sum(map(processor_time, self.processes))
        for worker in self.asked:
            assert worker.stdin is not None
            worker.stdin.write(f"{steps}\n")
            worker.stdin.flush()
        slowest = max(float(worker.stdout.readline()) for worker in self.asked if worker.stdout is not None)
        self.cpu.append((sum(map(processor_time, self.processes)) - before) / steps / len(self.asked))
        return len(self.asked) * steps / slowest

    def close(self) -> None:
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for worker in self.workers:
            worker.wait(timeout=60)


def processor_time(process: int) -> float:
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


def copy_speed(size: int) -> float:
    """Bytes per second of a memory copy by one thread."""
    source, target = torch.ones(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
    times = []
    for _ in range(9):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return size / statistics.median(times)


def compare(model: str, workers: int, count: int, rounds: int, seconds: float) -> dict[str, Any]:
    import msgspec

    from paceline.strategies.parameter_server import Meeting
    from paceline.strategies.server.config import ServerConfig
    from paceline.strategies.server.servers import Servers
    from paceline.wire.channel import Keys

    size = sum(parameter.numel() * 4 for parameter in make(model))
    keys = Keys.make()
    with tempfile.TemporaryDirectory() as folder:
        config = ServerConfig(
            keys=keys, folder=folder, workers=workers, servers=count, write_every=1e6, correction="momentum"
        )
        with Servers(config) as servers:
            met = msgspec.json.encode(Meeting(servers.addresses(), keys.access)).decode()
            every = (model, workers)
            sides = {
                "paceline": Side("paceline", range(workers), *every, met),
                "rpc": Side("rpc", range(workers + 1), *every, free_port()),
                "all-reduce": Side("all-reduce", range(workers), *every, free_port()),
                "passes": Side("passes", range(os.cpu_count() or 1), *every, 0),
                "update": Side("update", range(os.cpu_count() or 1), *every, 0),
            }
            try:
                for side in sides.values():
                    side.until_ready()
                sides["paceline"].processes += servers.processes().values()
                steps = {name: max(3, int(seconds * side.rate(3) / workers)) for name, side in sides.items()}
                copies: list[float] = []
                print(
                    f"{model}: {size / 1e6:.1f} MB, {len(shapes(model))} tensors, {workers} workers, {count} server(s)"
                )

                def measure(name: str) -> float:
                    if name == "paceline":
                        copies.append(copy_speed(size))
                    return sides[name].rate(steps[name])

                figures = in_turn(
                    {name: lambda name=name: measure(name) for name in sides},  # type: ignore[misc]
                    rounds,
                    "pushes+pulls/s",
                )
            finally:
                for side in sides.values():
                    side.close()
    report: dict[str, Any] = {"model": model, "bytes": size, "workers": workers}
    for name, rates in figures.items():
        rate = statistics.median(rates)
        share = statistics.median(2 * size * r / c for r, c in zip(rates, copies, strict=True))
        cpu = statistics.median(sides[name].cpu[1:])
        report[name] = {"per_s": rate, "GB_per_s": 2 * size * rate / 1e9, "share_of_copy": share, "cpu_s": cpu}
        print(
            f"  {name:<11} {rate:8.1f} pushes+pulls/s  {2 * size * rate / 1e9:6.2f} GB/s  {share:.2f} of a copy's speed"
            f"  {1000 * cpu:.2f} ms of processor time each"
        )
    for bound in ("passes", "update"):
        found = ratio(figures[bound], figures["rpc"])
        report[f"{bound}_against_rpc"] = [found.median, found.low, found.high]
        print(f"  at most, {bound} / rpc: {found}")
    for other in ("rpc", "all-reduce"):
        cheaper = ratio(sides[other].cpu[1:], sides["paceline"].cpu[1:])
        report[f"processor_time_of_{other}"] = [cheaper.median, cheaper.low, cheaper.high]
        print(f"  processor time, {other} / paceline: {cheaper}")
        found = ratio(figures["paceline"], figures[other])
        report[f"against_{other}"] = [found.median, found.low, found.high]
        print(f"  paceline / {other}: {found}")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-n", "--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1, help="processes of Paceline's server")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one side in one round")
    parser.add_argument("--models", nargs="+", default=["resnet18", "cnn"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.side is None:
        reports = [
            compare(model, options.workers, options.servers, options.rounds, options.seconds)
            for model in options.models
        ]
        if options.json:
            print(json.dumps(reports))
        return
    model, workers, meeting = options.rest[0], int(options.rest[1]), options.rest[2]
    if options.side == "paceline":
        paceline_worker(options.rank, meeting, model)
    elif options.side == "rpc":
        rpc_worker(options.rank, workers + 1, int(meeting), model)
    elif options.side in ("passes", "update"):
        bound_worker(model, copies=options.side == "passes")
    else:
        all_reduce_worker(options.rank, workers, int(meeting), model)


if __name__ == "__main__":
    main()
