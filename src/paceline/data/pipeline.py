"""The pipeline: a chain of stages, iterated like a DataLoader.

    train = (data.files("train-*.tfrecord")        # paths, sharded over workers
               .records(parallel=8)                 # bytes
               .shuffle_and_repeat(10_000, seed=0)  # bytes, in another order each epoch
               .map_and_batch(decode, 256)          # batches of tensors
               .prefetch())                         # the next batch is made while this one is used

Every stage returns a new pipeline and leaves the old one unchanged. Each `for` loop over a pipeline is an epoch.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.data.batch_sharing import Parting, is_the_scripts_own
from paceline.data.device import Lookahead
from paceline.data.error_policy import LostSamples, Policy
from paceline.data.execution.engines import Runtime
from paceline.data.execution.parallel_map import Rows
from paceline.data.execution.thread_pool import wait_for_all
from paceline.data.formats.registry import read_any, reader_of
from paceline.data.planner import PipelinePlan, Planner
from paceline.data.planning import stages as s
from paceline.data.planning.nodes import Context, Cursor, Mark
from paceline.data.planning.stages import (
    Last,
    Number,
    at_least,
    checked_policy,
    grows,
    how,
    place,
    runs_as_one,
    workers,
)
from paceline.data.report import Report, keeper, report_of
from paceline.data.size_limits import LINE
from paceline.data.sources.memory import Source
from paceline.data.stages.augment import Augment, Operation
from paceline.data.stages.combine import Mixed, Zipped
from paceline.errors import UsageError
from paceline.script.seams.api import current

VERSION = 1  # of the dictionary that `state` returns
GRACE = 5.0  # seconds that threads have to end when the process ends

_begun: weakref.WeakSet[Pipeline] = weakref.WeakSet()


class Pipeline:
    """Made by the sources (`data.arrays`, `data.files`, …) and by its own stages."""

    def __init__(
        self,
        source: Source | None,
        stages: tuple[s.Stage, ...] = (),
        *,
        title: str,
        made_of: tuple[str, tuple[Pipeline, ...], tuple[Any, ...]] | None = None,
        context: Context | None = None,
    ) -> None:
        self._source, self._stages, self._title, self._made_of = source, stages, title, made_of
        self._context = context or Context()
        self._runtime = Runtime()
        self._planned: PipelinePlan | None = None
        self._parting = Parting()
        self._epoch = 0  # of the next loop
        self._begin: tuple[int, Mark | None] | None = None  # where a restored state says to begin
        self._run: Run | None = None
        self._end: dict[str, Any] | None = None  # where the last loop ended

    def _with(self, *stages: s.Stage) -> Pipeline:
        return Pipeline(
            *(self._source, (*self._stages, *stages)), title=self._title, made_of=self._made_of, context=self._context
        )

    # -- stages that select and order samples ----------------------------------------------------------------------

    def shuffle(self, buffer: int | None = None, *, seed: int = 0) -> Pipeline:
        """Another order each epoch. Indexed samples are shuffled as a whole, streams in windows of `buffer` samples
        (default: 10,000)."""
        at_least(1, buffer=buffer)
        return self._with(s.Shuffle(buffer, seed))

    def repeat(self, times: int | None = None) -> Pipeline:
        """Repeats the epochs `times` times; without a number for ever."""
        at_least(0, times=times)
        return self._with(s.Repeat(times))

    def shuffle_and_repeat(self, buffer: int | None = None, times: int | None = None, *, seed: int = 0) -> Pipeline:
        """`shuffle` and `repeat` in one stage: the next epoch's window fills while this epoch's window drains. Epochs
        never mix."""
        at_least(1, buffer=buffer)
        at_least(0, times=times)
        return self._with(s.ShuffleAndRepeat(buffer, times, seed))

    def take(self, count: int) -> Pipeline:
        """The first `count` samples, counted over all workers."""
        at_least(0, count=count)
        return self._with(s.Take(count))

    def skip(self, count: int) -> Pipeline:
        """All samples but the first `count`, counted over all workers."""
        at_least(0, count=count)
        return self._with(s.Skip(count))

    def filter(self, function: Callable[[Any], Any], *, on_error: Policy = "raise") -> Pipeline:
        """The samples for which `function` returns a true value."""
        return self._with(s.Filter(function, checked_policy(on_error)))

    # -- stages that make samples and batches ----------------------------------------------------------------------

    def map(
        self,
        function: Callable[..., Any],
        *,
        seed: int | None = None,
        parallel: Number = "auto",
        kind: s.Kind = "auto",
        deterministic: bool = True,
        on_error: Policy = "raise",
    ) -> Pipeline:
        """Replaces each sample (after .batch: each batch) by the function's result. `kind` is where the function runs:
        "here", in "threads", in "processes", or "auto": whichever is fastest. With a `seed` the call is
        `function(sample, generator)`. The generator's numbers depend only on the seed, the epoch and the sample."""
        return self._with(s.Map(function, how(parallel, kind, deterministic), checked_policy(on_error), seed))

    def batch(
        self,
        size: int,
        *,
        last: Last = "keep",
        collate: Callable[[list[Any]], Any] | None = None,
        parallel: Number = "auto",
        kind: s.Kind = "auto",
        deterministic: bool = True,
    ) -> Pipeline:
        """Collates `size` samples: arrays and numbers become tensors. `last`: a smaller last batch is kept ("keep") or
        dropped ("drop")."""
        at_least(1, size=size)
        if last not in ("keep", "drop"):
            raise UsageError(f"last={last!r} is not known.", advice='Type last="keep" or last="drop".')
        return self._with(s.Batch(size, last, how(parallel, kind, deterministic), collate))

    def map_and_batch(
        self,
        function: Callable[..., Any],
        size: int,
        *,
        last: Last = "keep",
        seed: int | None = None,
        parallel: Number = "auto",
        kind: s.Kind = "auto",
        deterministic: bool = True,
        on_error: Policy = "raise",
    ) -> Pipeline:
        """`map` and `batch` in one job: each result is written directly into its row of the batch."""
        options: dict[str, Any] = {"parallel": parallel, "kind": kind, "deterministic": deterministic}
        mapped = self.map(function, seed=seed, on_error=on_error, **options)
        return mapped.batch(size, last=last, **options)

    def augment(self, *operations: Operation, seed: int = 0) -> Pipeline:
        """Applies operations to the images of a batch, in order, on the batch's device: `data.Crop`, `data.Flip`, …"""
        made = Augment(operations)
        return self.map(made, seed=seed if made.draws else None)

    def interleave(
        self, make: Callable[[Any], Any], *, cycle: int = 4, block: int = 1, parallel: bool = False
    ) -> Pipeline:
        """`make(sample)` returns an iterable. `cycle` iterables are open at a time and give `block` samples each in
        turn. `parallel`: threads prefetch the next samples of each."""
        at_least(1, cycle=cycle, block=block)
        return self._with(s.Interleave(lambda losses: read_any(make), cycle, block, parallel, "interleave"))

    def records(
        self,
        format: str = "auto",
        *,
        parallel: Number = "auto",
        block: int = 32,
        on_error: Policy = "raise",
        max_bytes: int | None = None,
    ) -> Pipeline:
        """The records of files: bytes of TFRecord files, samples of tar shards, lines of text files. The format follows
        from the file name, unless `format` is "tfrecord", "tar" or "lines". `parallel` files are open at a time.
        `max_bytes`: refuses a larger record or sample (default: 1 GiB) or line (256 MiB)."""
        cycle = 4 if parallel == "auto" else parallel
        at_least(1, parallel=cycle, block=block, max_bytes=max_bytes)
        policy = checked_policy(on_error)

        def policed(losses: LostSamples) -> Any:
            return reader_of(format, policy, losses, max_bytes)

        return self._with(s.Interleave(policed, cycle, block, None, "records"))

    def lines(
        self, *, parallel: int = 1, block: int = 1, on_error: Policy = "raise", max_bytes: int = LINE
    ) -> Pipeline:
        """The lines of text files, without their ends. `max_bytes`: refuses a longer line."""
        return self.records("lines", parallel=parallel, block=block, on_error=on_error, max_bytes=max_bytes)

    # -- caching, prefetching, copying, combining ------------------------------------------------------------------

    def cache(self, folder: str | None = None) -> Pipeline:
        """Makes each sample once and keeps it: in memory, or in a folder that later runs use as well. The cache applies
        before shuffling and batching wherever it is written, so each epoch has its own order."""
        return self._with(s.Cache(folder))

    def prefetch(self, depth: Number = "auto") -> Pipeline:
        """Makes the next `depth` batches in the background while this one is used: in a thread, or in a process if
        that is faster."""
        at_least(1, depth=None if depth == "auto" else depth)
        return self._with(s.Prefetch(None if depth == "auto" else depth))

    def to(self, device: Any) -> Pipeline:
        """Copies tensors to `device`: the next batch is copied while this one is used."""
        return self._with(s.To(str(device)))

    def zip(self, *others: Pipeline) -> Pipeline:
        """Tuples of one sample of each pipeline, until one of them ends."""
        return Pipeline(None, title="zip", made_of=("zip", (self, *others), ()), context=self._context)

    # -- workers ---------------------------------------------------------------------------------------------------

    def shard(self, rank: int | None = None, world: int | None = None) -> Pipeline:
        """This worker's part: every sample goes to one worker, once an epoch. `rank` and `world` default to those of
        torch.distributed, or else of the launcher. Every worker calls `shard`, with the same pipeline."""
        if rank is None or world is None:
            rank, world = place()
        if not 0 <= rank < world:
            raise UsageError(
                f"shard(rank={rank}, world={world}): there is no such rank.", advice="Ranks go from 0 to world - 1."
            )
        made = self._with()
        made._context = Context(rank=rank, world=world)
        return made

    # -- running ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._stop()
        epoch, mark = self._begin or (self._epoch, None)
        self._begin, self._epoch = None, epoch + 1
        plan, together = self._plan(), runs_as_one()
        use, hand_out = "", None
        if together and plan.gives_batches and is_the_scripts_own():
            use = self._parting.begins(plan.parts)
            hand_out = partial(self._parting.hand_out, use)
        context = replace(self._context, epoch=(epoch,), ordered=together, parted=bool(use), place=workers())
        cursor = plan.open(context, mark)
        if plan.gpu is not None:
            cursor = Lookahead(cursor, plan.gpu)
        self._run = Run(self._runtime, cursor, epoch, self._title, hand_out)
        _begun.add(self)
        return Loop(self, self._run)

    def __len__(self) -> int:
        """Batches (or samples) of one epoch on this worker; after `restore`, those that are left."""
        count = self._plan().length(self._context, self._begin[1] if self._begin else None)
        if count is None:
            raise TypeError("the length of this pipeline is unknown: it has a stream, a filter or an endless repeat")
        return -(-count // grows()) if self._plan().gives_batches else count

    def state(self) -> dict[str, Any]:
        """The position after the last batch that the loop received: a small dictionary of plain numbers and strings."""
        if self._run is not None:
            stands = self._run.stands()
        elif self._end is not None:
            stands = self._end
        else:
            epoch, mark = self._begin or (self._epoch, None)
            stands = {"epoch": epoch, "ended": False, "mark": mark}
        context = self._context
        return {
            "paceline": VERSION,
            "stages": self._signature(),
            "rank": context.rank,
            "world": context.world,
        } | stands

    def restore(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """The next loop continues from `state`, with the samples that were not delivered yet. To resume on another
        number of workers, pass the states of all workers (one state is enough for indexed samples). Every worker
        calls `restore`."""

        self._stop()
        self._end = None
        states = [state] if isinstance(state, dict) else list(state)
        self._begin = begin(self._plan(), self._signature(), self._context, states)
        self._epoch = self._begin[0]

    def close(self) -> None:
        """Ends threads and processes and closes files. A new loop starts them again."""
        self._stop()
        self._runtime.close(wait=True)

    def __del__(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """Tells threads and processes to end, without waiting for them."""
        if self._run is not None:
            self._run.cursor.close(wait=False)
        self._runtime.close(wait=False)

    def _stop(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            self._end = run.stands()
            run.cursor.close()
            run.tell()

    @property
    def lost(self) -> int:
        """How many records and samples were left out so far."""
        return self._runtime.losses.count

    def report(self) -> Report:
        """What each stage costs, and which one is the bottleneck; prints as a table."""
        self._plan()
        return report_of(self._runtime)

    # -- planning --------------------------------------------------------------------------------------------------

    def _plan(self) -> PipelinePlan:
        if self._planned is None:
            self._planned = self._planned_in(self._runtime)
        return self._planned

    def _planned_in(self, runtime: Runtime) -> PipelinePlan:
        first: Any = None
        if self._made_of is not None:
            kind, parts, options = self._made_of
            plans = [part._planned_in(runtime) for part in parts]
            first = Zipped(plans) if kind == "zip" else Mixed(plans, *options)
        return Planner(self._source, runtime, first).plan(self._stages)

    def _signature(self) -> str:
        """Source and order of the samples: a state is restored only into a pipeline with the same signature."""
        parts = [] if self._made_of is None else [part._signature() for part in self._made_of[1]]
        size = "" if self._source is None else f" {len(self._source)}"
        texts = [f"{self._title}{size}{f'({chr(59).join(parts)})' if parts else ''}"]
        for stage in self._stages:
            match stage:
                case s.Shuffle() | s.Repeat() | s.ShuffleAndRepeat() | s.Take() | s.Skip():
                    texts.append(repr(stage))
                case s.Interleave():
                    texts.append(f"{stage.name}({stage.cycle}, {stage.block})")
                case s.Filter():
                    texts.append("Filter()")
        return " | ".join(texts)

    def __repr__(self) -> str:
        return f"<pipeline {self._signature()}>"


@atexit.register
def _end() -> None:
    """The interpreter kills threads that still run at its end. A thread that is killed inside torch's code aborts the
    whole process, although the script has finished."""
    for pipeline in list(_begun):
        pipeline._let_go()
    wait_for_all(GRACE)


# -- one loop over a pipeline -----------------------------------------------------------------------------------------


class Loop:
    """What the script holds: the run, and the pipeline, whose finalizer ends the threads and processes that the run
    uses. The pipeline holds the run: if the run held the pipeline, both would live until the garbage collector came."""

    def __init__(self, pipeline: object, run: Run) -> None:
        self._pipeline, self._run = pipeline, run

    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> Any:
        return self._run.next()


class Run:
    """One loop over a pipeline."""

    def __init__(
        self,
        runtime: Runtime,
        cursor: Cursor,
        epoch: int,
        title: str,
        hand_out: Callable[[Callable[[], Any]], Any] | None,
    ) -> None:
        self.cursor, self.epoch, self.ended = cursor, epoch, False
        self._hand_out = hand_out  # builds the batch that the script sees if workers share batches; otherwise None
        self._clock, self._losses = runtime.clock, runtime.losses
        self._final: dict[str, Any] | None = None
        self._runtime, self._keeper = runtime, keeper()
        if self._keeper is not None:
            self._keeper.begins(runtime, title)

    def next(self) -> Any:
        """Under `paceline run` this is the on_batch seam, and its time counts as data time."""
        stage = current()
        if stage is None or threading.current_thread() is not threading.main_thread():
            return self._whole(self._next())
        stage.watch.enter("data")
        try:
            batch = self._next() if self._hand_out is None else self._hand_out(self._next)
        finally:
            stage.watch.leave()
        stage.emit("on_batch", batch)
        return batch

    def _whole(self, batch: Any) -> Any:
        """Outside the main thread a worker's rows cannot be combined with the rows of other workers."""
        if isinstance(batch, Rows):
            raise UsageError(
                "A loop over a pipeline began in the script's main thread and continues in another thread.",
                advice="Call iter(pipeline) in the thread that takes the batches.",
            )
        return batch

    def _next(self) -> Any:
        if not self.ended:
            self._clock.asked()
            got = self.cursor.take(1)
            if len(got):
                self._clock.answered()
                return got[0]
            self._clock.ended()
            self.ended = True
            self._final = self.stands()
            self.cursor.close()
            self._losses.say()
            self.tell()
        raise StopIteration

    def tell(self) -> None:
        """Writes the pipeline's report so far to the record of the run, if there is one."""
        if self._keeper is not None:
            self._keeper.ended(self._runtime)

    def stands(self) -> dict[str, Any]:
        return self._final or {"epoch": self.epoch, "ended": self.ended, "mark": self.cursor.mark()}

    def __del__(self) -> None:
        self.cursor.close(wait=False)


# -- resuming, on any number of workers -------------------------------------------------------------------------------


def begin(
    plan: PipelinePlan, signature: str, context: Context, states: Sequence[dict[str, Any]]
) -> tuple[int, Mark | None]:
    """The epoch and the mark at which this worker begins."""
    for state in states:
        _check(state, signature)
    first = states[0]
    world = int(first["world"])
    by_rank = {int(state["rank"]): state for state in states}
    same = world == context.world and (len(states) == 1 or len(by_rank) == world)
    own = by_rank.get(context.rank) if same else None
    if own is None and len(states) == 1 and world == context.world and plan.even:
        own = first  # all workers have equal marks
    if own is not None:
        # A worker whose part has ended waits for the others, if their states show that they are in the same epoch.
        over = all(state["ended"] or state["epoch"] > own["epoch"] for state in states)
        return (own["epoch"] + 1, None) if own["ended"] and over else (own["epoch"], own["mark"])
    return _settle(plan, context, by_rank, world)


def _settle(
    plan: PipelinePlan, context: Context, by_rank: dict[int, dict[str, Any]], world: int
) -> tuple[int, Mark | None]:
    if len(by_rank) < world:
        if len(by_rank) > 1 or not plan.even:
            raise UsageError(
                f"restore() got {len(by_rank)} of the states of {world} workers, but worker {context.rank} of "
                f"{context.world} needs all: the workers' positions differ.",
                advice="Pass the states of all ranks: pipeline.restore([state0, state1, …])",
            )
        # All workers have equal marks: one state is enough.
        shared = next(iter(by_rank.values()))
        by_rank = dict.fromkeys(range(world), shared)
    states = [by_rank[rank] for rank in range(world)]
    going = [state for state in states if not state["ended"]]
    if not going:
        return max(state["epoch"] for state in states) + 1, None
    epoch = min(state["epoch"] for state in going)
    later = [state for state in going if state["epoch"] > epoch and state["mark"] is not None]
    if later:
        raise UsageError(
            f"restore() got states of different epochs: {epoch} and {later[0]['epoch']}.",
            advice="Take the states of all workers after the same number of batches.",
        )
    ends = [state["ended"] or state["epoch"] > epoch for state in states]
    if all(state["mark"] is None for state in going):
        return epoch, None
    marks = [{"end": True} if ended else state["mark"] for state, ended in zip(states, ends, strict=True)]
    return epoch, plan.settle(marks)(context)


def _check(state: dict[str, Any], signature: str) -> None:
    if state.get("paceline") != VERSION:
        raise UsageError(
            "restore() got a value that is not a pipeline's state, or a state of another version.",
            advice="Pass the result of pipeline.state().",
        )
    if state["stages"] != signature:
        raise UsageError(
            f"restore() got the state of another pipeline: {state['stages']}; this pipeline is {signature}.",
            advice="Use the same source, order and filters; batch sizes and parallelism may differ.",
        )
