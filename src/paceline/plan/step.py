"""One step of N workers, predicted: compute, exposed communication, bubble, straggling and input; memory; the interval.

Overlap is not a factor: the record's buckets are replayed. Each bucket is sent when its last gradient is ready and the
bucket before has arrived; what lies behind the end of the backward is exposed. The step ends with the slowest of N
draws from the measured scatter of a worker's work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import msgspec

from paceline.plan.fabric import ALGORITHMS, Fabric, Place
from paceline.plan.workload import Point, Workload

BUCKET = 25 << 20  # bytes: Paceline's own size
MICRO = 4  # micro-batches of `--strategy pipeline` where none are typed
QUEUED = 64  # customers from which a queue's bounds are as good as its analysis
MODEL_ERROR = 0.25  # half width of the interval where no run of the record has been predicted: see `plan --check`
CAUSES = ("compute", "communication", "bubble", "straggle", "input")
STRATEGIES = ("mirrored", "sharded", "central", "server", "pipeline", "mesh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What is predicted. `batch`: rows of a step over all workers. `model`: workers that hold one copy of the model,
    for `pipeline` and `mesh`, and for products of `mirrored` and one of these."""

    workers: int
    batch: float
    strategy: str = "mirrored"
    algorithm: str = "hierarchical"
    bucket: float = BUCKET
    model: int = 1
    micro: int = MICRO  # micro-batches of a pipeline
    speed: float = 1.0  # of a worker, relative to the record's
    base: float = 0.0  # rows of the one worker that efficiency compares with; 0: those of each worker
    devices: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        data = self.workers // self.model
        if self.model == 1 or self.strategy not in ("pipeline", "mesh"):
            return self.strategy
        chunks = f" (chunks={self.micro})" if self.strategy == "pipeline" and self.micro != MICRO else ""
        return f"{self.strategy} {self.model}{chunks}" + (f" × mirrored {data}" if data > 1 else "")


class Predicted(msgspec.Struct, kw_only=True):
    """One step. The causes add up to `seconds`; `straggle` is waiting for the slowest worker."""

    workers: int
    strategy: str
    algorithm: str
    bucket: float
    batch: float
    seconds: float
    samples_per_s: float
    low: float  # samples/s
    high: float
    efficiency: float
    parts: dict[str, float]
    memory: float | None  # bytes of a worker; None: unknown
    fits: bool | None
    bottleneck: str
    remedy: str
    price_per_hour: float = 0.0
    relative_time: float | None = None  # to the same accuracy, where only ratios of times are known
    seconds_to_accuracy: float | None = None
    cost_to_accuracy: float | None = None


@dataclass
class Model:
    """Predicts steps of one workload on one cluster. `error`: the half width of the interval, as a fraction."""

    workload: Workload
    fabric: Fabric
    error: float = MODEL_ERROR
    _places: dict[tuple[int, tuple[int, ...]], Place] = field(default_factory=dict)
    _buckets: dict[float, list[tuple[float, float]]] = field(default_factory=dict)
    _parts: dict[float, tuple[float, float, float, float]] = field(default_factory=dict)
    _behind: dict[int, float] = field(default_factory=dict)
    _sums: dict[tuple[int, tuple[int, ...], str, float], list[tuple[float, float]]] = field(default_factory=dict)

    def place(self, workers: int, devices: tuple[int, ...] = ()) -> Place:
        key = workers, devices
        if key not in self._places:
            self._places[key] = Place(self.fabric, workers, devices)
        return self._places[key]

    def work(self, rows: float) -> tuple[float, float, float, float]:
        """Seconds of forward, backward, update and input of a worker with so many rows, at the record's speed."""
        if rows not in self._parts:
            parts: tuple[Callable[[Point], float], ...] = (
                lambda p: p.forward,
                lambda p: p.backward,
                lambda p: p.update,
                lambda p: p.data,
            )
            forward, backward, update, data = (self.workload.at(rows, part) for part in parts)
            self._parts[rows] = forward, backward, update, data
        return self._parts[rows]

    def predict(self, setup: Setup, *, words: bool = True) -> Predicted:
        """The step of this setup. Without `words`, what limits it is left out: a search asks for the best only."""
        data = setup.workers // setup.model
        rows = setup.batch / data
        forward, backward, update, loading = self.work(rows)
        forward, backward, update = (each / setup.speed / setup.model for each in (forward, backward, update))
        if setup.workers == 1:
            exposed, bubble = 0.0, 0.0
        else:
            exposed, bubble, update = getattr(self, f"_{setup.strategy}")(setup, forward, backward, update)
            exposed += self._exchanges(setup)
        compute = forward + backward + update
        if setup.workers not in self._behind:
            self._behind[setup.workers] = self.workload.behind(setup.workers)
        # Asynchronous workers do not wait for each other.
        straggle = 0.0 if setup.strategy == "server" else self._behind[setup.workers] * (compute + loading)
        parts = {
            "compute": compute,
            "communication": exposed,
            "bubble": bubble,
            "straggle": straggle,
            "input": loading,
        }
        seconds = sum(parts.values())
        rate = setup.batch / seconds
        base = setup.base or rows
        *own, input_alone = self.work(base)
        alone = base / (sum(own) / setup.speed + input_alone)
        off = sqrt(self.error**2 + self.workload.spread**2)
        memory = self.memory(setup, rows)
        room = self.fabric.cluster.memory
        bottleneck, remedy = self._why(setup, parts) if words else ("", "")
        return Predicted(
            workers=setup.workers,
            strategy=setup.title,
            algorithm=setup.algorithm if setup.workers > 1 else "-",
            bucket=setup.bucket,
            batch=setup.batch,
            seconds=seconds,
            samples_per_s=rate,
            low=rate / (1 + off),
            high=rate * (1 + off),
            efficiency=rate / (setup.workers * alone),
            parts=parts,
            memory=memory,
            fits=None if memory is None or not room else memory <= room,
            bottleneck=bottleneck,
            remedy=remedy,
            price_per_hour=self.fabric.cluster.price_per_hour * self.place(setup.workers).hosts,
        )

    # -- strategies: exposed communication, bubble, and the update -----------------------------------------------------

    def _mirrored(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        return replay(self._sums_of(setup), backward), 0.0, update

    def _sums_of(self, setup: Setup) -> list[tuple[float, float]]:
        """Seconds of each bucket's sum, and the fraction of the backward after which it may begin."""
        key = setup.workers, setup.devices, setup.algorithm, setup.bucket
        if key not in self._sums:
            place = self.place(setup.workers, setup.devices)
            self._sums[key] = [
                (place.all_reduce(setup.algorithm, size), when) for size, when in self.buckets(setup.bucket)
            ]
        return self._sums[key]

    def _exchanges(self, setup: Setup) -> float:
        """Seconds of the small exchanges: their software, as measured, and their messages."""
        messages = self.workload.messages * self.place(setup.workers, setup.devices).message()
        return self.workload.exchange / setup.speed + messages

    def buckets(self, size: float) -> list[tuple[float, float]]:
        if size not in self._buckets:
            self._buckets[size] = self.workload.buckets(size)
        return self._buckets[size]

    def _sharded(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        """Each bucket of parameters is gathered before its forward and again before its backward, and its gradients are
        reduce-scattered. On GPUs, while the bucket before computes. Over Gloo nothing overlaps, and a reduce-scatter is
        an all-reduce of which each worker keeps a part."""
        place = self.place(setup.workers, setup.devices)
        if not self.fabric.gpus:
            # Around a ring of all workers, a gather is half of a sum.
            rings = 2 * sum(place.all_reduce("ring", size) for size, _ in self.buckets(setup.bucket))
            return rings, 0.0, update / setup.workers
        moves = [place.one_way(size) for size, _ in self.buckets(setup.bucket)]
        if not moves:
            return 0.0, 0.0, update
        total = sum(moves)
        ahead = moves[-1] + max(total - moves[-1] - forward, 0.0)
        back = moves[-1] + max(2 * total - 2 * moves[-1] - backward, 0.0)
        return ahead + back, 0.0, update / setup.workers

    def _central(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        """Gradients are averaged as under `mirrored`. Then each worker copies its share of the parameters and of their
        gradients to the host's memory and updates it, and every worker copies all parameters back: nothing overlaps."""
        cluster, size = self.fabric.cluster, self.workload.gradients
        copied = (2 + setup.workers) * size / (cluster.memory_gb_per_s * 1e9)
        averaged = replay(self._sums_of(setup), backward)
        return averaged + 2 * cluster.local_latency + copied, 0.0, update / setup.workers

    def _server(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        """One server, on the first host, asynchronous. A worker of another host sends gradients, then fetches
        parameters; all of them share the network of the server's host, in each direction. For workers of its own host
        the server reads and writes in memory; they may not be many steps ahead of the others."""
        place, size = self.place(setup.workers, setup.devices), self.workload.gradients
        cluster, own = self.fabric.cluster, forward + backward + update
        if away := setup.workers - place.local:
            cycle = queued(own + 2 * cluster.latency, (size / cluster.network, size / cluster.network), away)
        else:
            through = 2 * size / (cluster.memory_gb_per_s * 1e9)
            cycle = queued(own + 2 * cluster.local_latency, (through,), setup.workers)
        # The server makes one update after the other.
        return max(cycle, setup.workers * update) - own, 0.0, update

    def _pipeline(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        """Stages of equal work: of m micro-batches and p stages, (p - 1)/m of the work is bubble. Stages are neighbours
        on a host first."""
        stages, micro = setup.model, setup.micro
        bubble = (stages - 1) / micro * (forward + backward)
        rows = setup.batch / (setup.workers // stages) / micro
        size = self.workload.cut * rows
        inner = self.place(min(stages, self.fabric.cluster.slots))
        rate = self.fabric.cluster.network if stages > self.fabric.cluster.slots else inner.local_rate
        alpha = self.fabric.cluster.latency if stages > self.fabric.cluster.slots else self.fabric.cluster.local_latency
        moves = 2 * (stages - 1) * (alpha + size / rate)  # filling and emptying; between them, moves overlap
        # A link carries activations in the forward, and their gradients, the other way, in the backward.
        slow = sum(max(micro * size / rate - each, 0.0) for each in (forward, backward))
        return self._beside(setup, backward) + moves + slow, bubble, update

    def _mesh(self, setup: Setup, forward: float, backward: float, update: float) -> tuple[float, float, float]:
        """Tensor parallelism: each block sums activations twice in its forward, and twice in its backward, exposed."""
        size = self.workload.cut * setup.batch / (setup.workers // setup.model)
        sums = 4 * max(self.workload.blocks, 1) * self.place(setup.model).all_reduce("hierarchical", size)
        return self._beside(setup, backward) + sums, 0.0, update

    def _beside(self, setup: Setup, backward: float) -> float:
        """The gradients' sum over the copies of the model. A host's workers hold parts of the model, and send as many
        bytes over the network as if they held all of it and had summed it."""
        return 0.0 if setup.workers == setup.model else replay(self._sums_of(setup), backward)

    # -- memory ----------------------------------------------------------------------------------------------------

    def memory(self, setup: Setup, rows: float) -> float | None:
        """Bytes of a worker: measured by rows, with the parameters, gradients and optimizer's states dealt out."""
        work = self.workload
        measured = work.at(rows, lambda p: p.memory)
        if not any(p.memory for p in work.points) or len(work.points) < 2:
            return None
        parameters, gradients = float(work.parameters), work.gradients
        states = work.states * parameters
        held = parameters + gradients + states
        activations = max(measured - held, 0.0)
        n = setup.workers
        match setup.strategy:
            case "sharded":
                held = held / n + 2 * setup.bucket
            case "central" if not self.fabric.gpus:  # the host's copies are in memory that a worker maps, too
                held = 2 * parameters + gradients + states / n
            case "central" | "server":
                held = parameters + gradients
            case "pipeline" | "mesh":
                held, activations = held / setup.model, activations / setup.model
        return activations + held

    # -- words -----------------------------------------------------------------------------------------------------

    def _why(self, setup: Setup, parts: dict[str, float]) -> tuple[str, str]:
        """The largest cause beside compute, and what would remove it."""
        total = sum(parts.values())
        cause, lost = max(((c, parts[c]) for c in CAUSES[1:]), key=lambda each: each[1])
        if lost < 0.02 * total:
            return "compute", "a faster device, or lower precision (paceline tune)"
        place = self.place(setup.workers, setup.devices)
        if cause == "communication":
            small = self._exchanges(setup)
            if small > lost / 2:
                return (
                    f"small exchanges: {self.workload.messages:.0f} a step over {setup.workers:,} workers",
                    "fewer of them: --mod view=slice",
                )
            if setup.strategy == "server":
                what = "network" if place.hosts > 1 else "memory"
                return f"the {what} of the server's host", "all-reduce (mirrored)"
            if setup.strategy == "central":
                return "one host's memory, through which all parameters go", "mirrored"
            if setup.strategy == "mesh":
                return "sums of activations: " + place.limit(), "fewer workers for one copy of the model"
            latency = self._latency(setup, place)
            if latency > lost / 2:
                return "latency of many messages", "larger buckets, or the algorithm tree"
            return place.limit(), self._faster(setup, place)
        return {
            "bubble": ("the pipeline's bubble", "more micro-batches, or fewer stages"),
            "straggle": (
                f"waiting for the slowest of {setup.workers:,} workers",
                "even work and quiet hosts (paceline run names the late worker)",
            ),
            "input": ("input", "more loader processes, or --mod resident (paceline tune)"),
        }[cause]

    def _latency(self, setup: Setup, place: Place) -> float:
        """Seconds of the buckets' sums if bytes cost nothing."""
        if setup.strategy != "mirrored":
            return 0.0
        return len(self.buckets(setup.bucket)) * place.all_reduce(setup.algorithm, 1.0)

    def _faster(self, setup: Setup, place: Place) -> str:
        """How many times the rate that would hide all sums behind the backward, or what else helps."""
        backward = self.work(setup.batch / (setup.workers // setup.model))[1] / setup.speed / setup.model
        busy = sum(seconds for seconds, _ in self._sums_of(setup))
        if backward > 0 and busy > backward:
            return f"{busy / backward:.1f} × that rate, larger batches, or --compression bf16"
        return "smaller last buckets, or --compression bf16"


def replay(sums: list[tuple[float, float]], backward: float) -> float:
    """Seconds by which the sums of the buckets end after the backward. `sums`: seconds of each, and the fraction of the
    backward after which it may begin; one after the other."""
    free = 0.0
    for seconds, when in sums:
        free = max(free, when * backward) + seconds
    return max(free - backward, 0.0)


def queued(alone: float, stations: Sequence[float], customers: int) -> float:
    """Seconds of a round of each of N customers, who spend `alone` by themselves and then need each station for so
    long: the usual mean-value analysis of a closed network of queues, for many customers its bounds."""
    cycle = alone + sum(stations)
    if customers > QUEUED:
        return max(cycle, customers * max(stations))
    waiting = [0.0] * len(stations)
    for number in range(1, customers + 1):
        took = [need * (1 + there) for need, there in zip(stations, waiting, strict=True)]
        cycle = alone + sum(took)
        waiting = [each * number / cycle for each in took]
    return cycle


def best_algorithm(model: Model, setup: Setup) -> Setup:
    """The setup with the algorithm of the shortest step."""
    if setup.workers == 1 or setup.strategy not in ("mirrored", "central", "pipeline", "mesh"):
        return setup
    tried = [replace(setup, algorithm=name) for name in ALGORITHMS if name != "copy"]
    return min(tried, key=lambda each: model.predict(each, words=False).seconds)
