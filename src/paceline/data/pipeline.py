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
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.data.device import Lookahead
from paceline.data.distributed.batch_sharing import Parting, is_the_scripts_own
from paceline.data.error_policy import LostSamples, Policy
from paceline.data.execution.engines import Runtime
from paceline.data.execution.thread_pool import wait_for_all
from paceline.data.formats.registry import read_any, reader_of
from paceline.data.iteration import Loop, Run
from paceline.data.options import Number, at_least, checked_policy, grows, how, place, runs_as_one, workers
from paceline.data.planner import PipelinePlan, Planner
from paceline.data.planning import stages as s
from paceline.data.planning.nodes import Context, Mark
from paceline.data.planning.stages import Last
from paceline.data.report import Report, report_of
from paceline.data.size_limits import LINE
from paceline.data.sources.memory import Source
from paceline.data.stages.augment import Augment, Operation
from paceline.data.stages.combine import Mixed, Zipped
from paceline.errors import UsageError

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
        from paceline.data.distributed.resume import begin

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
