"""Pipeline: each worker computes one stage of the model, and micro-batches go through the stages.

    paceline run -n 2 --strategy "pipeline(stages=2,chunks=4)" train.py
    paceline run -n 4 --strategy "pipeline(stages=2,data=2)" train.py       # two replicas of the pipeline

or in a script:

    model, optimizer, loader = paceline.Pipeline(stages=2).distribute(model, optimizer, loader)

The loss stays in the script: the last stage's outputs go to all workers, every worker computes the same loss, and its
backward starts the backward of the stages (GPipe). Replicas split the rows of a batch, as `Mirrored` does.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import nn

from paceline.comm.axes import Axes
from paceline.comm.buckets import Watcher
from paceline.comm.coalesced import from_owners
from paceline.errors import PacelineError, ScriptError, UsageError
from paceline.script import chance, tree
from paceline.script.proof.reasons import name_of
from paceline.script.proof.recorder import CannotTry
from paceline.script.rows.crossings import Split
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.seams.api import current
from paceline.script.seams.stage import Stage
from paceline.script.slicing.lazy_parameters import initialise_lazy
from paceline.script.slicing.parts import sizes_of, within
from paceline.strategies.base import A, B, C, D
from paceline.strategies.owned_state import parameters_of
from paceline.strategies.pipelined import orders, streams
from paceline.strategies.pipelined.at_seams import AtSeams
from paceline.strategies.pipelined.cutting import Cutting, cut_model, refusal, refuse_hooks
from paceline.strategies.pipelined.holding import Holding
from paceline.strategies.pipelined.micro_batches import FEW, Kind, MicroBatches, rows_of
from paceline.strategies.pipelined.schedule import Call, Clock, Schedule
from paceline.strategies.pipelined.segment import CannotCut
from paceline.strategies.pipelined.stage_parts import StageParts
from paceline.strategies.pipelined.train_step import (
    Asked,
    Loss,
    Share,
    Trained,
    TrainStep,
    refuse_gradients,
    train,
)
from paceline.strategies.pipelined.way_back import StagedModel, WayBack, are_same, parts_of
from paceline.strategies.zero1 import Zero1
from paceline.torch_private import is_checkpointed, parameters_in
from paceline.units import size

NOT_1F1B = (
    "schedule=1f1b needs forward and backward in one call (distribute(…, loss=…)), and this script calls them one "
    "after the other: the schedule is gpipe. The bubble is the same; more activations are kept."
)


@dataclass(frozen=True, slots=True)
class _Now:
    """The call under way."""

    module: nn.Module
    model: StagedModel
    kind: Kind
    cuts: list[int]  # the leaves of its arguments that have rows


class Pipeline(StageParts):
    """Each worker computes one stage of the model; micro-batches go through the stages.

    Take it if the model does not fit on one device and the links between devices are slow: only activations at the cuts
    move. Costs the bubble: with S stages and M micro-batches, workers idle for (S - 1) / (M + S - 1) of the time. The
    stages are the axis pipe, rows the axis data. When a peer dies, the receive or the collective that misses it raises.
    """

    name = "pipeline"
    whole_models = False

    def __init__(
        self,
        stages: int = 2,
        data: int = 0,
        schedule: str = "gpipe",
        chunks: int = 4,
        parts: int = 2,
        cut: str = "parameters",
    ) -> None:
        """`data`: replicas of the pipeline; 0: as many as there are workers for. `chunks`: micro-batches of a replica's
        batch. `parts`: of the model for each worker, if the schedule is "interleaved". `cut`: stages have even shares
        of the "parameters" or of the "time"."""
        super().__init__()
        self.stages, self.data, self.asked_schedule, self.cut = stages, data, schedule, cut
        self.chunks = max(chunks, 1)
        self.parts = max(parts, 1) if schedule == "interleaved" else 1
        self._models: weakref.WeakKeyDictionary[nn.Module, StagedModel | None] = weakref.WeakKeyDictionary()
        self._calls: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._asked: Asked | None = None
        self._now: _Now | None = None
        self._has_cut = False  # a model of this script runs in stages
        self.clock, self._used = Clock(), 1  # most micro-batches of a call

    def axes(self, workers: int) -> Axes:
        if workers == 1:  # it computes all stages
            return Axes()
        stages, data = max(self.stages, 1), self.data or workers // max(self.stages, 1)
        if stages * data != workers:
            raise UsageError(
                f"pipeline(stages={self.stages},data={self.data or '…'}) cannot be laid out on {workers} workers.",
                advice=f"There is one worker for each stage of each replica: -n {stages * max(data, 1)}",
            )
        return Axes(pipe=stages, data=data)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if stage.aside or stage.group.world == 1:
            return
        self.pipe = stage.group.along("pipe", stage.axes.members(stage.group.rank, "pipe"))
        self.pipe.ending, self.pipe.together = stage.ending, stage.together
        # All replicas of the pipeline; without the workers that divide a stage among them.
        self.replicas = stage.group.along("replicas", stage.axes.members(stage.group.rank, "pipe", "data", "shard"))
        self.post = self.pipe.post("pipe")
        self.holding = Holding(self.pipe)
        stage.pulse.before_waiting = self.holding.numbers.send
        self._updates = Zero1.over(stage, stage.group)
        self._micro_batches = MicroBatches(stage, self.pipe, self.chunks)
        if stage.rows.world == 1:
            chance.share(stage)
        stage.subscribe(AtSeams(self))

    def watch_gradients(self, watcher: Watcher) -> None:
        """Gradients are averaged over the axis data only."""
        if self._is_needed():
            super().watch_gradients(watcher)

    @overload
    def distribute(self, one: A, /) -> A: ...
    @overload
    def distribute(self, one: A, two: B, /) -> tuple[A, B]: ...
    @overload
    def distribute(self, one: A, two: B, three: C, /) -> tuple[A, B, C]: ...
    @overload
    def distribute(self, one: A, two: B, three: C, four: D, /) -> tuple[A, B, C, D]: ...
    @overload
    def distribute(self, *objects: Any, loss: Loss) -> TrainStep: ...
    @overload
    def distribute(self, *objects: Any) -> Any: ...

    def distribute(self, *objects: Any, loss: Loss | None = None) -> Any:
        """As of all strategies; with a `loss(output, target)` that is a mean or a sum over rows, returns a function
        instead: `step(*inputs, target)` computes the model, the loss and all gradients, in the strategy's schedule, and
        returns the loss. Then 1F1B is possible, which keeps fewer activations."""
        found = super().distribute(*objects)
        if loss is None:
            return found
        model = next(thing for thing in objects if isinstance(thing, nn.Module))
        stage = current()
        strategy = stage.strategy if stage is not None else self
        return TrainStep(strategy if isinstance(strategy, Pipeline) else None, model, loss)

    @property
    def most_in_flight(self) -> int:
        """Micro-batches whose activations this worker held at once, in training steps with the loss inside."""
        return self.clock.most_in_flight

    def ask(self, asked: Asked | None) -> None:
        """The next call computes this loss and its gradients."""
        self._asked = asked

    def step(self, plain: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Each stage updates its own parameters. Parameters that every worker holds are updated as in ZeRO-1."""
        if self.stage.group.world == 1:
            return plain(optimizer, *args, **kwargs)
        self.holding.team.lent.write_back(arrays=True)
        self.holding.numbers.settle()  # parameters that every worker holds are updated by one worker each
        self.compare_operands()
        self.holding.keep_own_state(optimizer)
        return self._updates.step(plain, optimizer, *args, **kwargs)

    def compare_operands(self) -> None:
        """What the script has put into tensors of stages must be equal. Every worker calls it; waits for all."""
        self.holding.operands.compare(self.pipe)

    # -- a call ----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.stage.group.world == 1:
            return plain(module, *args, **kwargs)
        if is_checkpointed():
            raise ScriptError(
                f"torch.utils.checkpoint around a call of the model {name_of(module)} does not go through a pipeline.",
                advice="Call the model without it, or checkpoint modules inside it; or choose --strategy mirrored.",
            )
        given = (args, kwargs)
        self.holding.team.lent.write_back(arrays=True)
        self.holding.numbers.settle()  # a stage computes without the other workers
        self.holding.gather(list(module.buffers()), ())  # a mask that the script has made of a stage's weight
        model = self._models.get(module)
        if model is not None and not are_same(model.parts, parts_of(module)):  # the script has replaced some
            model = self._models.pop(module) and None
            self._micro_batches.forget(module)
        if module not in self._models or (model is not None and module.training not in model.proven):
            model = self._models[module] = self._cut(plain, module, given, model)
        if model is None:
            self.holding.gather(list(parameters_in(module)), self.stage.optimizers)
            return self.stage.views.call(plain, module, args, kwargs)
        refuse_hooks(module)
        try:
            output = self._call(plain, module, model, given)
            refuse_hooks(module)  # that the call itself has set
            return output
        except (CannotCut, CannotTry) as why:
            raise refusal(module, self.stages * self.parts, str(why)) from None
        finally:
            self._now = None

    def _call(self, plain: Callable[..., Any], module: nn.Module, model: StagedModel, given: Any) -> Any:
        batch, cuts = rows_of(tree.leaves(given), self.stage.run.batch_dim)
        kind = self._micro_batches.kind_of(module, model, given, batch)
        self._now = _Now(module, model, kind, cuts)
        if self._asked is not None:
            return self._train(plain, self._now, make_plain(given), batch)
        if torch.is_grad_enabled() and self.asked_schedule == "1f1b":
            self.stage.views.warn(NOT_1F1B)
        if plain not in self._calls:
            self._calls[plain] = self._in_stages(plain)
        if self.stage.rows.world > 1 and (kind.has_rows or self.stage.views.batch_is_cut):
            return self.stage.views.call(self._calls[plain], module, *given)
        make_plain(given)
        return self._calls[plain](module, *given[0], **given[1])

    def _in_stages(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            now = self._now
            if now is None or module is not now.module:  # a copy, in a proof
                return plain(module, *args, **kwargs)
            with self.stage.inside():
                return self._run(plain, now, (args, kwargs))

        return call

    def _run(self, plain: Callable[..., Any], now: _Now, given: Any) -> Any:
        """Computes a call on this replica's rows."""
        leaves, dim, draws = tree.leaves(given), self.stage.run.batch_dim, self.stage.views.draws
        model, kind, slices = now.model, now.kind, self.stage.views.split_of_call
        rows = {leaves[n].shape[dim] for n in now.cuts}
        chunks = 1 if len(rows) != 1 or (slices is not None and slices.uneven) else kind.chunks
        sizes = sizes_of(rows.pop() if len(rows) == 1 else 0, chunks)
        if torch.is_grad_enabled():
            self._used = max(self._used, len(sizes))
        in_slice = slices if draws.on else None  # otherwise the worker draws its own numbers

        def drawing(split: Split, made: int) -> Any:
            if split.group.world == 1:
                return nullcontext() if in_slice is None else draws.after(made)
            if in_slice is not None:
                split = within(in_slice.sizes, in_slice.group.rank, chunks, split.group.rank)
            return draws.in_call(split, kind.rules, strict=False, made=made)

        averages, begin = self.stage.views.averages, streams.packed() if kind.rules else None
        with self.holding.team.gathered(model.parameters) as gathered:
            done = model.schedule.forward(Call(plain, given, now.cuts, sizes, dim, drawing, kind.plan, averages))
            if done.counted is None:
                if begin is not None:
                    streams.put(begin)
                sizes = [sum(sizes)]
                done = model.schedule.forward(Call(plain, given, now.cuts, sizes, dim, drawing, kind.plan, averages))
        if now.module.training:
            self._share_buffers(model.schedule.cutting)
        output = done.output
        if torch.is_grad_enabled() and any(done.needs_grad):
            output = WayBack(self.stage, model, done, leaves, now.cuts, sizes, dim, gathered).output()
        if averages.watching and done.counted is not None and kind.plan is not None and kind.plan.averages:
            divisors, all_count = done.counted  # by which the replicas combine their losses
            tensors = [leaf for leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor)]
            for place, divisor in divisors.items():
                averages.take(tensors[place], torch.tensor(divisor, dtype=torch.float64, device="cpu"))
            averages.count_all(counted=all_count)
        return output

    def _train(self, plain: Callable[..., Any], now: _Now, given: Any, batch: int) -> Trained:
        """Computes a call, the loss that was asked for and all gradients."""
        asked, self._asked = self._asked, None
        assert asked is not None
        refuse_gradients(given)
        stage, kind, dim, draws = self.stage, now.kind, self.stage.run.batch_dim, self.stage.views.draws
        split = stage.rows.world > 1 and kind.has_rows and not kind.has_norms
        slices = Split.of(stage.rows, batch).sizes if split else (batch,)
        replica = stage.rows.rank if split else 0
        each = [sizes_of(size, kind.chunks) for size in slices]
        share = Share(
            self.replicas if split else self.pipe, [n for sizes in each for n in sizes], sum(map(len, each[:replica]))
        )

        def drawing(part: Split, made: int) -> Any:
            if len(share.sizes) == 1:
                return nullcontext()
            part = within(slices, replica, kind.chunks, part.group.rank)
            return draws.in_call(part, kind.rules, strict=False, made=made)

        self._used = max(self._used, len(each[replica]))
        own, sizes = given, each[replica]
        if split:
            start, size = (sum(slices[:replica]), slices[replica]) if slices[replica] else (0, 1)
            leaves = tree.leaves(given)
            mine = [leaf.narrow(dim, start, size) if n in now.cuts else leaf for n, leaf in enumerate(leaves)]
            own, sizes = tree.rebuild(given, iter(mine)), sizes if slices[replica] else [1]
        with stage.inside(), self.holding.team.gathered(now.model.parameters):
            weights, all_count = self._micro_batches.weigh(asked, kind, given, share.sizes)
            trained = train(
                Call(plain, own, now.cuts, sizes, dim, drawing),
                *(now.model, asked, share, weights, stage.views.averages if all_count else None),
                few_in_flight=self.asked_schedule != "gpipe",
            )
        if now.module.training:
            self._share_buffers(now.model.schedule.cutting)
        return trained

    # -- a model ---------------------------------------------------------------------------------------------------

    def _cut(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, before: StagedModel | None
    ) -> StagedModel | None:
        """The model in stages, proven in its present mode; None if it runs whole on every worker. `before`: as it was
        cut in its other mode."""
        initialise_lazy(plain, module, *given)
        known = None if before is None else before.schedule.cutting
        asked = (self.stages * self.parts, self.cut, None if known is None else known.segments.cuts)
        group, versions = self.stage.group, [p._version for p in parameters_in(module)]
        try:
            with self.holding.team.together(module):
                try:
                    cutting = cut_model(group, plain, module, self._micro_batches.few(given, FEW), *asked)
                except PacelineError:
                    raise
                except Exception:  # a model for one batch size. If it raises again, so would the call
                    cutting = cut_model(group, plain, module, given, *asked)
        except ScriptError as why:
            if not self._has_cut or versions != [
                p._version for p in parameters_in(module)
            ]:  # the proof changed weights
                raise
            self.stage.views.warn(f"{why.message} Therefore every worker computes it whole.")
            return None
        self._has_cut = True
        if known is not None:
            cutting = known.also(cutting)
        self._lay_out(module)
        owners = cutting.owners()
        parameters, mine = list(parameters_in(module)), self.pipe.rank
        numbers = [n for n, p in enumerate(parameters) if any(s % self.stages == mine for s in owners[p])]
        device = next((p.device for p in parameters), torch.device("cpu"))
        workers = {p: [*{stage % self.stages for stage in stages}] for p, stages in owners.items()}
        kept = self.holding.divide(workers, self.stage.optimizers, self._known if self._is_needed() else ())
        if self._is_needed():
            super()._meet_all(module)
        if before is None:
            self._tell_stages(cutting, owners, *kept)
        proven = {module.training} | (set() if before is None else before.proven)
        schedule = Schedule(self.holding.team, self.stage.rows, self.post, cutting, device, self.clock)
        return StagedModel(schedule, parameters, numbers, proven, parts_of(module))

    def _lay_out(self, module: nn.Module) -> None:
        """The module's parameters are about to be given to their stages."""

    def _tell_stages(
        self, cutting: Cutting, owners: dict[nn.Parameter, tuple[int, ...]], kept: int, total: int
    ) -> None:
        begins = ("the input", *cutting.segments.cuts)
        counts = [sum(p.numel() for p, where in owners.items() if stage in where) for stage in range(len(begins))]
        told = "; ".join(
            f"stage {n} from {begin}, {count:,} parameters"
            for n, (begin, count) in enumerate(zip(begins, counts, strict=True))
        )
        self.stage.pulse.notice(
            f"The model {name_of(cutting.segments.module)} runs as a pipeline: {told}. Worker 0 keeps {size(kept)} of "
            f"{size(total)} of the parameters, and the same part of gradients and of the optimizer's state."
        )

    def _meet_all(self, module: nn.Module) -> None:
        """Only after the model was cut: until then no worker knows what it holds."""
        if module in self._models:
            super()._meet_all(module)

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        super().after_backward(losses)
        self.settle_gradients()

    def settle_gradients(self) -> None:
        """Each worker keeps the gradients of what it holds."""
        trained = (p for optimizer in self.stage.optimizers for p in parameters_of(optimizer))
        for parameter in (*(p for module in self._models for p in parameters_in(module)), *trained):
            self.holding.settle_gradient(parameter)

    def _ready(self, parameter: torch.Tensor) -> None:
        self.holding.settle_gradient(parameter)
        super()._ready(parameter)

    def _share_buffers(self, cutting: Cutting) -> None:
        """Gives every worker the buffers that training has changed (running statistics): their stage has changed them,
        and the script may save them."""
        buffers = [(buffer, owner % self.pipe.world, buffer) for buffer, owner in cutting.owner_of_buffers()]
        for number, owner, value in from_owners(self.pipe, buffers, "the buffers of the stages"):
            if owner != self.pipe.rank:  # its own backward may need the buffer as it is
                buffers[number][0].copy_(value)

    def tell_bubble(self) -> None:
        """Says how long stages waited. Every worker calls it."""
        clock = torch.tensor([self.clock.idle, self.clock.total], dtype=torch.float64, device="cpu")
        clocks = self.pipe.gather_vectors(clock, "the idle time of the stages").tolist()
        total = sum(total for _, total in clocks)
        if not total:
            return
        predicted = orders.bubble(self.stages, self._used, self.parts)
        each = ", ".join(f"stage {n} {idle / (total or 1):.0%}" for n, (idle, total) in enumerate(clocks))
        parts = f" of {self.parts} parts" if self.parts > 1 else ""
        waited = sum(idle for idle, _ in clocks) / total
        self.stage.pulse.notice(
            f"Pipeline bubble with {self.stages} stages{parts} and {self._used} micro-batches: {predicted:.0%} "
            f"predicted for even stages, {waited:.0%} of the time in the model measured ({each})."
        )
