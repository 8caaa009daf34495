"""The planner: turns the stages of a pipeline into nodes.

As long as samples are indexed, `shuffle`, `repeat`, `take` and `skip` change only the order, and apply before anything
is loaded, even if they are written after a `map`, because a map returns one result for each sample. Maps and the batch
after them become one job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from paceline.data.device import Moved
from paceline.data.error_policy import LostSamples
from paceline.data.execution.engines import Runtime, cores
from paceline.data.execution.parallel_map import Jobs
from paceline.data.execution.prefetch import PrefetchNode
from paceline.data.execution.prefetch_process import PrefetchProcess
from paceline.data.planning import order as orders
from paceline.data.planning import stages as s
from paceline.data.planning.job import NOTHING, Step, Work
from paceline.data.planning.nodes import Context, Cursor, Deal, Keys, Mark, Node, Opener, Settled
from paceline.data.sources.memory import Source
from paceline.data.stages.cache import Cached, Memo
from paceline.data.stages.combine import Mixed, Zipped
from paceline.data.stages.interleave import Interleaved
from paceline.data.stages.limit import Filtered, Limited
from paceline.data.stages.repeat import Rounds
from paceline.data.stages.shuffle_buffer import Windows
from paceline.errors import UsageError

WINDOW = 10_000  # samples of a stream's shuffle buffer, if `shuffle` gives no number
REORDERING = (Windows, Rounds, Limited)  # nodes that change only the choice and the order of samples


class PipelinePlan:
    """Opens cursors over a chain of nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)

    @property
    def even(self) -> bool:
        return all(node.even for node in self.nodes)

    @property
    def gpu(self) -> torch.device | None:
        """The GPU that batches are copied to; None if there is none."""
        devices = [node.device for node in self.nodes if isinstance(node, Moved) and node.device.type == "cuda"]
        return devices[-1] if devices else None

    @property
    def gives_batches(self) -> bool:
        """Whether the results are batches, with samples as rows."""
        found = False
        for node in self.nodes:
            if isinstance(node, (Zipped, Mixed)):
                found = all(plan.gives_batches for plan in node.plans)
            elif isinstance(node, Jobs) and node.size is not None:
                found = True
            elif isinstance(node, Interleaved):
                found = False
        return found

    @property
    def parts(self) -> Jobs | None:
        """The last node that makes batches, if it can make single rows of a batch; otherwise None."""
        last = next((node for node in reversed(self.nodes) if not isinstance(node, PrefetchNode)), None)
        return last if isinstance(last, Jobs) and last.can_be_parted else None

    def open(self, context: Context, mark: Mark | None) -> Cursor:
        return self._opener(len(self.nodes))(context, mark)

    def _opener(self, upto: int) -> Callable[[Context, Mark | None], Cursor]:
        def opened(context: Context, mark: Mark | None) -> Cursor:
            node = self.nodes[upto - 1]
            if context.parted and not isinstance(node, PrefetchNode) and node is not self.parts:
                context = replace(context, parted=False)
            return node.open(self._opener(upto - 1), context, mark)

        return opened

    def settle(self, marks: Sequence[Mark | None]) -> Settled:
        return self._settle(len(self.nodes), marks)

    def _settle(self, upto: int, marks: Sequence[Mark | None]) -> Settled:
        return self.nodes[upto - 1].settle(marks, lambda inner: self._settle(upto - 1, inner))

    def length(self, context: Context, mark: Mark | None = None) -> int | None:
        """The number of results that a worker gets from its mark on; None if it is unknown."""
        count: int | None = None
        for node in self.nodes:
            if isinstance(node, Keys):
                count = Deal(node.order.length, context, mark).left()
            elif isinstance(node, Zipped):
                each = [None] * len(node.plans) if mark is None else mark["each"]
                counts = [plan.length(context, inner) for plan, inner in zip(node.plans, each, strict=True)]
                count = None if None in counts else min(known for known in counts if known is not None)
            elif isinstance(node, Jobs) and node.size is not None and count is not None:
                count = count // node.size if node.last == "drop" else -(-count // node.size)
            elif not isinstance(node, (Jobs, PrefetchNode, Moved)):
                return None
        return count


class Planner:
    """Reads stages one by one, and holds back those that may still be merged with the next."""

    def __init__(
        self, source: Source | None, runtime: Runtime, first: Node | None = None, *, in_prefetch_process: bool = False
    ) -> None:
        self.runtime, self.begins_with, self.in_prefetch_process = runtime, source, in_prefetch_process
        self.read: list[s.Stage] = []
        self.nodes: list[Node] = [first] if first is not None else []
        self.source = source  # None from the first stage on that makes a stream
        self.order: orders.Order | None = None if source is None else orders.Whole(len(source))
        self.steps: list[Step] = []  # maps that are not a node yet
        self.batch: s.Batch | None = None  # the batch after those maps
        self.after: list[Step] = []  # maps after that batch
        self.how = s.How()
        self.moved = False  # after `to(device)`, later maps run in the thread that uses the device's stream

    def plan(self, stages: Sequence[s.Stage]) -> PipelinePlan:
        for stage in stages:
            self._read(stage)
            self.read.append(stage)
        self._flush()
        return PipelinePlan(self.nodes)

    def _read(self, stage: s.Stage) -> None:
        match stage:
            case s.Map():
                self.how = _stricter(self.how, stage.how)
                (self.steps if self.batch is None else self.after).append(
                    Step(stage.function, stage.on_error, stage.seed)
                )
            case s.Batch() if self.batch is None:
                self.how = _stricter(self.how, stage.how)
                self.batch = stage
            case s.Cache():
                self._cache(stage)
            case s.Interleave():
                self._interleave(stage)
            case s.Shuffle() | s.Repeat() | s.ShuffleAndRepeat() | s.Take() | s.Skip() if self._in_order(stage):
                pass
            case s.Shuffle() | s.Repeat() | s.ShuffleAndRepeat() | s.Take() | s.Skip():
                self._reorder(stage)
            case _:
                self._flush()
                self._append(stage)

    def _in_order(self, stage: s.Stage) -> bool:
        """Changes the order and returns True, if samples are still indexed."""
        order = self.order
        if order is None or self.batch is not None:
            return False
        match stage:
            case s.Shuffle() if order.length is not None:
                self.order = orders.Shuffled(order, stage.seed)
            case s.ShuffleAndRepeat() if order.length is not None:
                self.order = orders.Repeated(orders.Shuffled(order, stage.seed), stage.times)
            case s.Repeat():
                self.order = orders.Repeated(order, stage.times)
            case s.Take():
                self.order = orders.Taken(order, stage.count)
            case s.Skip():
                self.order = orders.Skipped(order, stage.count)
            case _:
                return False
        return True

    def _reorder(self, stage: s.Stage) -> None:
        """Reorders a stream. Maps are held back, so that records wait in the shuffle buffer before they are decoded."""
        if self.order is not None or self.batch is not None:
            self._flush()
        match stage:
            case s.Shuffle():
                self.nodes.append(Windows(stage.buffer or WINDOW, stage.seed))
            case s.ShuffleAndRepeat():
                self.nodes.append(Windows(stage.buffer or WINDOW, stage.seed, stage.times))
            case s.Repeat():
                self.nodes.append(Rounds(stage.times))
            case s.Take():
                self.nodes.append(Limited(0, stage.count))
            case s.Skip():
                self.nodes.append(Limited(stage.count, None))

    def _append(self, stage: s.Stage) -> None:
        match stage:
            case s.Filter():
                self.nodes.append(Filtered(Step(stage.function, stage.on_error), self.runtime.losses))
            case s.Prefetch():
                process = self._prefetch_process() if self._may_prefetch_in_process() else None
                self.nodes.append(PrefetchNode(stage.depth, self.runtime.meter("prefetch"), process))
            case s.To():
                self.moved = True
                last = self.nodes[-1] if self.nodes else None
                if isinstance(last, PrefetchNode) and last.process is not None and stage.device.startswith("cuda"):
                    last.process.pins = True
                self.nodes.append(Moved(stage.device, self.runtime.meter(f"to {stage.device}")))
            case s.Batch():
                self.batch = stage
                self.how = stage.how

    def _may_prefetch_in_process(self) -> bool:
        """Whether another process can open the stages read so far: samples are indexed, or read from files by
        Paceline's readers, and no stage caches, prefetches, copies to a device or has kind="here"."""
        own = all(stage.name == "records" for stage in self.read if isinstance(stage, s.Interleave))
        kept = any(isinstance(stage, s.Cache | s.Prefetch | s.To) for stage in self.read)
        here = any(isinstance(stage, s.Map | s.Batch) and stage.how.kind == "here" for stage in self.read)
        return self.begins_with is not None and own and not (kept or here or self.in_prefetch_process) and cores() > 1

    def _prefetch_process(self) -> PrefetchProcess:
        source, stages = self.begins_with, tuple(self.read)

        def planned() -> tuple[Opener, Runtime]:
            runtime = Runtime(losses=LostSamples(keeps=True))
            return Planner(source, runtime, in_prefetch_process=True).plan(stages).open, runtime

        process = PrefetchProcess(planned, self.runtime.meters, self.runtime.losses)
        self.runtime.prefetch_processes.append(process)
        return process

    def _cache(self, stage: s.Cache) -> None:
        """Puts the cache before shuffling and batching, wherever it is written, so that each epoch has its own
        order."""
        if self.after:
            self._flush()
        if self.source is not None:
            self.source = Memo(self.source, self.steps, stage.folder, self.runtime.losses)
            self.steps = []
            return
        last = max((number for number, node in enumerate(self.nodes) if not isinstance(node, REORDERING)), default=-1)
        reordering, self.nodes = self.nodes[last + 1 :], self.nodes[: last + 1]
        batch, self.batch, how = self.batch, None, self.how
        self._flush()
        self.nodes += [Cached(stage.folder), *reordering]
        self.batch, self.how = batch, how

    def _interleave(self, stage: s.Interleave) -> None:
        if self.source is None or self.order is None or self.batch is not None:
            raise UsageError(
                f".{stage.name}() comes after a stage that makes a stream.",
                advice=f"Write .{stage.name}() right after the source (shuffle, repeat and map may come before it).",
            )
        source, steps, losses = self.source, tuple(self.steps), self.runtime.losses

        def unit(index: int) -> Any:
            value = source.fetch(index)
            for step in steps:
                value = step(value, lambda _: source.name(index), 0, losses)
            return value

        read = stage.policed(losses)
        node = Interleaved(
            *(self.order, unit, source.name, lambda value, start: iter(()) if value is NOTHING else read(value, start)),
            cycle=stage.cycle,
            block=stage.block,
            prefetch=stage.prefetch,
            meter=self.runtime.meter(stage.name),
        )
        self.nodes.append(node)
        self.source, self.order, self.steps = None, None, []

    def _flush(self) -> None:
        """Turns the stages that were held back into nodes."""
        source, batch, steps = self.source, self.batch, tuple(self.steps)
        if source is not None:
            assert self.order is not None
            self.nodes.append(Keys(self.order, source.name))
        work = Work(
            gather=source.gather if source is not None and batch and not steps and not batch.collate else None,
            fetch=None if source is None else source.fetch,
            steps=steps,
            batched=batch is not None,
            collate=None if batch is None else batch.collate,
            after=tuple(self.after),
        )
        if not work.nothing_to_do:
            names = [*(f"map {step.name}" for step in steps), *([f"batch {batch.size}"] if batch else [])]
            names += [f"map {step.name}" for step in self.after]
            self.nodes.append(
                Jobs(
                    work=work,
                    losses=self.runtime.losses,
                    meter=self.runtime.meter(" · ".join(names) or "fetch"),
                    size=None if batch is None else batch.size,
                    last="keep" if batch is None else batch.last,
                    deterministic=self.how.deterministic,
                    pools=None if self.moved else self.runtime.chooser(self.how),
                )
            )
        self.source, self.order, self.batch, self.steps, self.after = None, None, None, [], []
        self.how = s.How()


def _stricter(one: s.How, other: s.How) -> s.How:
    """The options of two stages that become one job: an option set in either applies."""
    parallel = other.parallel if one.parallel is None else one.parallel
    kind = other.kind if one.kind == "auto" else one.kind
    return replace(one, parallel=parallel, kind=kind, deterministic=one.deterministic and other.deterministic)
