"""Overlap of a training step on one core with the preparation of its batches on another. Part of benchmarks/data.py.

The step is torch's forward, backward and optimizer on one thread. Preparing a batch takes 0.9 times as long, either in
work that releases the GIL (unpacking and scaling of arrays) or in work that holds the GIL (a loop in Python).

    alone      the step, with its batch in memory
    beside     … while another process prepares batches and sends none: the best that the machine's two cores allow
    fed        … with batches from a pipeline with default settings

Slots are short and alternate; a slot's figure is the median of its steps, so that other activity on the machine has
little effect. The parts of a fed step are printed as well: waiting for the batch, the step's own CPU time, and the
rest, in which the step waited for the GIL or for a core.
"""

from __future__ import annotations

import os
import resource
import signal
import statistics
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from side_by_side import in_turn, ratio
from torch import nn

import paceline.data as pd

STEP = 0.02  # seconds of a step, approximately
SHARE = 0.9  # of a step: time to prepare a batch
SLOT = 0.4  # seconds of a slot
PACKED = zlib.compress(np.random.default_rng(0).integers(0, 40, 150_000).astype(np.uint8).tobytes(), 6)


def unpack() -> Any:
    return np.frombuffer(zlib.decompress(PACKED), np.uint8).astype(np.float32) / 255


def count() -> int:
    total = 0
    for value in range(2000):
        total += value * 3
    return total


def on_a_core(function: Callable[[], Any], seconds: float = 0.3) -> float:
    """CPU seconds of a call, which do not depend on the load of the machine."""
    function()
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.thread_time()
        function()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def training_step() -> Callable[[], None]:
    """A step whose number of samples takes STEP seconds on one core."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def of(size: int) -> Callable[[], None]:
        x, y = torch.rand(size, 784), torch.randint(0, 10, (size,))

        def step() -> None:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    few, many = on_a_core(of(64)), on_a_core(of(256))
    return of(max(32, round(64 + 192 * (STEP - few) / (many - few))))


class Elsewhere:
    """A process that prepares batches for SHARE of its time, until it is stopped."""

    def __init__(self, prepare: Callable[[int], Any], rest: float) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            parent = os.getppid()
            while os.getppid() == parent:
                prepare(0)
                time.sleep(rest)
            os._exit(0)
        os.kill(self.pid, signal.SIGSTOP)

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __exit__(self, *error: object) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


class Slot:
    """Steps of one slot: medians of what each took, in ms."""

    def __init__(self, step: Callable[[], None], batches: Iterator[Any] | None, seconds: float = SLOT) -> None:
        rows, until = [], time.perf_counter() + seconds
        if batches is not None:  # discard the batches that were prepared since the last slot
            for _ in range(6):
                next(batches)
                step()
        before = resource.getrusage(resource.RUSAGE_THREAD)
        while time.perf_counter() < until or len(rows) < 5:
            asked, core = time.perf_counter(), time.thread_time()
            if batches is not None:
                next(batches)
            began = time.perf_counter()
            step()
            rows.append((time.perf_counter() - asked, began - asked, time.thread_time() - core))
        after = resource.getrusage(resource.RUSAGE_THREAD)
        self.whole, self.waited, self.worked = (statistics.median(row) * 1e3 for row in zip(*rows, strict=True))
        self.gave_way = (after.ru_nvcsw - before.ru_nvcsw) / len(
            rows
        )  # voluntary context switches, mostly waits for the GIL
        self.pushed_off = (after.ru_nivcsw - before.ru_nivcsw) / len(rows)


def overlap(args: Any, folder: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    step = training_step()
    for name, piece in (("unpacking", unpack), ("Python", count)):
        own = on_a_core(step)
        pieces = max(1, round(SHARE * own / on_a_core(piece)))

        def prepare(number: int, piece: Any = piece, pieces: int = pieces) -> int:
            for _ in range(pieces):
                piece()
            return number

        taken = on_a_core(lambda prepare=prepare: prepare(0))
        print(f"  {name}: a step takes {own * 1e3:.1f} ms of a core, preparing {taken * 1e3:.1f}")
        figures, parts, report = measure(args, step, prepare, (1 - SHARE) * own)
        print("  " + str(report).replace("\n", "\n  "))
        fed = [statistics.median(getattr(slot, part) for slot in parts) for part in ("whole", "waited", "worked")]
        gave, pushed = (statistics.median(getattr(slot, part) for slot in parts) for part in ("gave_way", "pushed_off"))
        rest = fed[0] - fed[1] - fed[2]
        print(f"  a fed step: {fed[0]:.1f} ms = {fed[1]:.2f} waiting + {fed[2]:.1f} on a core + {rest:.1f} neither;")
        print(f"  it waited {gave:.1f} times, and was pushed off its core {pushed:.1f} times")
        for other in ("alone", "beside"):
            print(f"  a fed step / a step {other}: {ratio(figures['fed'], figures[other])}")
        found |= {f"{name} {side}": values for side, values in figures.items()}
    return found


def measure(args: Any, step: Any, prepare: Any, rest: float) -> tuple[dict[str, list[float]], list[Slot], Any]:
    other = Elsewhere(prepare, rest)
    pipeline = pd.items(list(range(1 << 20))).map(prepare).prefetch()
    batches, parts = iter(pipeline), []
    try:
        until = time.perf_counter() + args.warm_up + 3  # time for the pipeline to choose where to prepare batches
        while time.perf_counter() < until:
            next(batches)
            step()

        def beside() -> float:
            with other:
                return Slot(step, None).whole

        def fed() -> float:
            parts.append(Slot(step, batches))
            return parts[-1].whole

        sides = {"alone": lambda: Slot(step, None).whole, "beside": beside, "fed": fed}
        return in_turn(sides, 4 * args.rounds, "ms"), parts, pipeline.report()
    finally:
        pipeline.close()
        other.close()
