"""Wires for tests: over Gloo between the workers of a pool, through memory between threads, and one that counts."""

from __future__ import annotations

import itertools
import pickle
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pool import Pool

from paceline.comm.group import Group
from paceline.comm.network.gloo_wire import Transfer, Wire, connect
from paceline.comm.network.hierarchy import connect_lane, count_lanes

SOON = 20.0  # seconds until a death is noticed: under five by itself, and what a busy machine adds to it
_wires: dict[str, Wire] = {}  # of this worker: connected once, used by many examples


def wire_of(group: Group) -> Wire:
    """A wire between all workers of a pool."""
    name = "all"
    if name not in _wires:
        _wires[name] = connect(group._store, name, group.rank, group.world, address="127.0.0.1")
    return _wires[name]


def hosts_of(group: Group, workers: Sequence[int], *, leaders: bool = False) -> tuple[Counting, Counting | None, int]:
    """The workers of a pool as hosts of these sizes: this one's wire within its host, its lane, and how many lanes."""
    assert sum(workers) == group.world
    starts = list(itertools.accumulate(workers, initial=0))
    host = next(index for index, end in enumerate(starts[1:]) if group.rank < end)
    rank, lanes = group.rank - starts[host], count_lanes(workers, leaders=leaders)
    name = f"{'-'.join(map(str, workers))}.{lanes}"
    if f"{name}.within" not in _wires:
        within = connect(group._store, f"{name}/{host}", rank, workers[host], address="127.0.0.1")
        _wires[f"{name}.within"] = within
        lane = connect_lane(
            group._store, name, host=host, hosts=len(workers), local_rank=rank, lanes=lanes, address="127.0.0.1"
        )
        if lane is not None:
            _wires[f"{name}.lane"] = lane
    lane = _wires.get(f"{name}.lane")
    return Counting(_wires[f"{name}.within"]), None if lane is None else Counting(lane), lanes


def with_a_death(pool: Pool, function: Callable[..., Any], *args: Any) -> tuple[dict[int, Any], set[int]]:
    """Runs a function in which a worker dies: what the others answered, and who died or failed."""
    for _, pipe in pool._workers.values():
        pipe.send_bytes(pickle.dumps((function, args)))
    answers, errors = pool._receive(60.0, grace=60.0)
    return answers, set(errors)


class Counting:
    """A wire that counts what it sends."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.rank, self.world = wire.rank, wire.world
        self.bytes = self.messages = 0

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        self.bytes += tensor.nbytes
        self.messages += 1
        return self._wire.send(tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        return self._wire.receive(tensor, source)

    def close(self) -> None:
        self._wire.close()


# -- threads: more workers than a machine has room for -----------------------------------------------------------------


@dataclass
class _Now:
    """A transfer that happens when it is waited for."""

    do: Callable[[], Any]

    def wait(self) -> None:
        self.do()


@dataclass
class ThreadWire:
    """Sending copies at `wait`, or when the receiver asks: a tensor that is changed too early arrives changed, and one
    that was sent to nobody keeps its sender waiting."""

    rank: int
    world: int
    lines: defaultdict[tuple[int, int], queue.Queue[Any]] = field(repr=False)

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        assert tensor.is_contiguous()
        assert to != self.rank
        taken = threading.Event()
        self.lines[self.rank, to].put((tensor, taken))

        def wait() -> None:
            assert taken.wait(60), f"{self.rank} → {to}: nobody took {tuple(tensor.shape)}"

        return _Now(wait)

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        order = self.lines[-1 - source, self.rank]
        filled = threading.Event()
        order.put((tensor, filled))

        def wait() -> None:
            while not filled.is_set():  # messages are taken in the order in which receives were started
                sent, taken = self.lines[source, self.rank].get(timeout=60)
                into, done = order.get(timeout=60)
                assert (sent.dtype, sent.shape) == (into.dtype, into.shape)
                into.copy_(sent)
                taken.set()
                done.set()

        return _Now(wait)

    def close(self) -> None:
        raise AssertionError("a worker gave up")


def on_threads(world: int, function: Callable[[ThreadWire], Any]) -> list[Any]:
    """The function on `world` workers that are threads; results in the order of ranks."""
    lines: defaultdict[tuple[int, int], queue.Queue[Any]] = defaultdict(queue.Queue)
    for pair in itertools.product(range(world), range(world)):
        lines[pair] = queue.Queue()
        lines[-1 - pair[0], pair[1]] = queue.Queue()
    results: list[Any] = [None] * world
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            results[rank] = function(ThreadWire(rank, world, lines))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
