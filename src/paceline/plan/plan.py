"""One plan: the table by workers, the best setups for a goal, the knee, and what the record cannot tell."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paceline.errors import UsageError
from paceline.plan.fabric import Fabric
from paceline.plan.search import Found, Goal, Knee, Progress, knee, search
from paceline.plan.step import STRATEGIES, Model, Predicted, Setup, best_algorithm
from paceline.plan.workload import Workload
from paceline.units import count


class Plan(msgspec.Struct, kw_only=True):
    """`rows`: the table of one strategy; `others`: every strategy that can be predicted, at the same numbers of
    workers. `checked`: runs of the record that were predicted to know the model's error."""

    script: str
    cluster: str
    hosts: int
    slots: int
    mode: str
    batch: int
    measured_on: str
    speed: float
    gradients: float
    error: float
    checked: int
    rows: list[Predicted]
    others: list[Predicted]
    found: Found | None
    knee: Knee | None
    unknown: list[str]


def make_plan(
    work: Workload,
    fabric: Fabric,
    *,
    numbers: Sequence[int],
    strategy: str,
    weak: bool,
    speed: float,
    devices: tuple[int, ...] = (),
    goal: Goal | None = None,
    budget: float = 0.0,
    error: float,
    checked: int = 0,
) -> Plan:
    """Predicts everything that was asked for. UsageError for a strategy that is unknown, or cannot be predicted."""
    model = Model(work, fabric, error=error)
    known = [name for name in STRATEGIES if work.cut or name not in ("pipeline", "mesh")]
    if strategy not in known:
        why = "needs the bytes of activations" if strategy in STRATEGIES else "is not known to plan"
        raise UsageError(
            f"--strategy {strategy}: {why}. Strategies: {', '.join(known)}.",
            advice="Add --activations, such as 2MiBx24." if strategy in STRATEGIES else "Type: --strategy mirrored",
        )
    slots = fabric.cluster.slots
    if strategy == "central" and max(numbers) > slots:
        raise UsageError(
            f"--strategy central keeps the parameters in the memory of one host; -n {max(numbers)} needs "
            f"{-(-max(numbers) // slots)} hosts of {count(slots, 'worker')}.",
            advice=f"Type: -n {slots} or less, or --strategy sharded",
        )
    progress = Progress.of(work)

    def predict(name: str, workers: int) -> Predicted:
        # Under `server`, each worker takes whole batches of the script.
        batch = float(work.batch * (workers if weak or name == "server" else 1))
        copy = min(workers, slots, work.blocks) if name in ("pipeline", "mesh") else 1
        setup = Setup(
            workers=workers,
            batch=batch,
            strategy=name,
            model=copy if workers % max(copy, 1) == 0 else 1,
            speed=speed,
            base=work.batch,
            devices=devices if len(devices) == workers else (),
        )
        found = model.predict(best_algorithm(model, setup))
        found = found if progress is None else progress.judged(found)
        found.relative_time = None  # of numbers of workers, only ratios of samples/s are shown
        return found

    everything = {name: [predict(name, n) for n in numbers if name != "central" or n <= slots] for name in known}
    unknown = list(work.unknown)
    if max(numbers) > len(work.scatter):
        unknown.append(
            f"the slowest of {max(numbers):,} workers: only {len(work.scatter):,} steps were measured, without rarer "
            "delays"
        )
    together = max((known.workers / known.hosts for known in work.known), default=1)
    if work.device == "CPU" and min(max(numbers), fabric.cluster.slots) > together:
        unknown.append(
            f"how workers of one host slow each other's compute: measured was {count(int(together), 'worker')} at most"
        )
    smallest, largest = min(p.rows for p in work.points), max(p.rows for p in work.points)
    beyond = [one for one in everything[strategy] if not smallest <= one.batch / one.workers <= largest]
    if beyond:
        rows = beyond[-1].batch / beyond[-1].workers
        unknown.append(f"compute of {rows:,.4g} rows: measured from {smallest:,.4g} to {largest:,.4g}")
    if work.device == "CPU" and fabric.gpus and any(point.memory for point in work.points):
        unknown.append("memory on a GPU: the record's is that of a process on a host")
    if goal is not None:
        unknown.append("how much stale gradients of the strategy server slow learning: they count as fresh ones")
    if speed == 1.0:
        unknown.append(
            f"the speed of the cluster's devices: taken as that of the record's {work.device} (--speed sets another)"
        )
    if not fabric.cluster.price_per_hour and (goal == "cost" or budget):
        unknown.append("the price of a host (price_per_hour of a cluster's JSON): cost is counted in worker-seconds")
    return Plan(
        script=work.name,
        cluster=fabric.cluster.name,
        hosts=fabric.cluster.hosts,
        slots=fabric.cluster.slots,
        mode="weak" if weak else "strong",
        batch=work.batch,
        measured_on=work.device + (f", {work.threads} thread{'s' * (work.threads > 1)}" if work.threads else ""),
        speed=speed,
        gradients=work.gradients,
        error=model.error,
        checked=checked,
        rows=everything[strategy],
        others=[one for each in everything.values() for one in each],
        found=search(model, goal=goal, largest=max(numbers), budget=budget, speed=speed) if goal else None,
        knee=knee(model, max(numbers), speed=speed),
        unknown=unknown,
    )
