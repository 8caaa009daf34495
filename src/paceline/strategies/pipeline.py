"""Pipeline: each worker computes one stage of the model, and micro-batches go through the stages.

    paceline run -n 2 --strategy "pipeline(stages=2,chunks=4)" train.py

or in a script:

    model, optimizer, loader = paceline.Pipeline(stages=2).distribute(model, optimizer, loader)

The loss stays in the script: the last stage's outputs go to all workers, every worker computes the same loss, and its
backward starts the backward of the stages (GPipe).
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.comm.axes import Axes
from paceline.comm.coalesced import broadcast_all
from paceline.errors import PacelineError, ScriptError, UsageError
from paceline.script import chance, tree
from paceline.script.draws.rows import DrawRule, Position
from paceline.script.seams.api import current
from paceline.script.seams.stage import Stage
from paceline.script.slicing.comparing import close
from paceline.script.slicing.dry_run import asleep, undisturbed, woken
from paceline.script.slicing.proof import initialise_lazy
from paceline.script.slicing.reasons import name_of
from paceline.strategies.base import BaseStrategy
from paceline.strategies.loss_check import LossCheck, is_number
from paceline.strategies.pipelined import streams
from paceline.strategies.pipelined.cutting import Cutting, cut_model, refusal, refuse_hooks
from paceline.strategies.pipelined.schedule import Call, Clock, Schedule
from paceline.strategies.pipelined.segment import CannotCut
from paceline.strategies.pipelined.train_step import Asked, Loss, Trained, TrainStep, train
from paceline.strategies.pipelined.way_back import StagedModel, WayBack, are_same, parts_of
from paceline.strategies.zero1 import Zero1
from paceline.torch_private import BatchNorm

NOT_1F1B = (
    "schedule=1f1b needs the loss inside the last stage, and this script computes its loss outside the model: the "
    "schedule is gpipe. The bubble is the same; more activations are kept."
)
VALUES = (str, bool, int, enum.Enum)  # that may switch what a model does
FEW = 2  # rows for each micro-batch in a proof, and one more, so that micro-batches differ in size


@dataclass(frozen=True, slots=True)
class _Kind:
    """How calls of one kind are cut into micro-batches."""

    chunks: int
    rules: tuple[DrawRule, ...] = ()  # of this stage's random draws
    calls: int = 0  # that proved it


class Pipeline(BaseStrategy):
    """Pipeline parallelism over all workers. When a peer dies, the receive or the collective that misses it raises."""

    name = "pipeline"
    whole_models = False

    def __init__(self, stages: int = 2, schedule: str = "gpipe", chunks: int = 4, cut: str = "parameters") -> None:
        """`chunks`: micro-batches of a batch. `cut`: stages have even shares of the "parameters" or of the "time"."""
        self.stages, self.asked_schedule, self.chunks, self.cut = stages, schedule, max(chunks, 1), cut
        self._models: weakref.WeakKeyDictionary[nn.Module, StagedModel | None] = weakref.WeakKeyDictionary()
        self._kinds: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _Kind]] = weakref.WeakKeyDictionary()
        self._asked: Asked | None = None
        self._has_cut = False  # a model of this script runs in stages
        self._clock, self._used = Clock(), 1  # most micro-batches of a call

    def axes(self, workers: int) -> Axes:
        if workers not in (1, self.stages):  # one worker computes all stages
            raise UsageError(
                f"pipeline(stages={self.stages}) cannot be laid out on {workers} workers.",
                advice=f"There is one worker for each stage: -n {self.stages}",
            )
        return Axes(pipe=workers)

    def on_stage(self, stage: Stage) -> None:
        super().on_stage(stage)
        if stage.aside or stage.group.world == 1:
            return
        axes = stage.axes
        self.group = stage.group.along("pipe", axes.members(stage.group.rank, "pipe"))
        self.post = self.group.post("pipe")
        self._updates = Zero1.over(stage, self.group)
        chance.share(stage)
        stage.subscribe(_Seams(self))

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
        return self._clock.most_in_flight

    def ask(self, asked: Asked | None) -> None:
        """The next call computes this loss and its gradients."""
        self._asked = asked

    def _train(self, call: Call, module: nn.Module, model: StagedModel) -> Trained:
        asked, self._asked = self._asked, None
        assert asked is not None
        with self.stage.inside():
            trained = train(call, model, asked, few_in_flight=self.asked_schedule == "1f1b")
        if module.training:
            self._share_buffers(model.schedule.cutting)
        return trained

    def step(self, plain: Callable[..., Any], optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Each worker keeps the optimizer's state of a part of the parameters, as in ZeRO-1."""
        if self.stage.group.world == 1:
            return plain(optimizer, *args, **kwargs)
        return self._updates.step(plain, optimizer, *args, **kwargs)

    # -- a call ----------------------------------------------------------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.stage.group.world == 1:
            return plain(module, *args, **kwargs)
        given = (args, kwargs)
        model = self._models.get(module)
        if model is not None and not are_same(model.parts, parts_of(module)):  # the script has replaced some
            model = self._models.pop(module) and None
            self._kinds.pop(module, None)
        if module not in self._models or (model is not None and module.training not in model.proven):
            model = self._models[module] = self._cut(plain, module, given, model)
        if model is None:
            return plain(module, *args, **kwargs)
        refuse_hooks(module)
        try:
            return self._call(plain, module, model, given)
        except CannotCut as why:
            raise refusal(module, self.stages, str(why)) from None

    def _call(self, plain: Callable[..., Any], module: nn.Module, model: StagedModel, given: Any) -> Any:
        leaves, dim = tree.leaves(given), self.stage.run.batch_dim
        batch, cuts = _rows_of(leaves, dim)
        kind = self._kind(plain, module, model, given, batch, cuts)
        sizes = _sizes(batch, kind.chunks)
        if torch.is_grad_enabled():
            self._used = max(self._used, len(sizes))
        draws = self.stage.views.draws

        def drawing(split: Any) -> Any:
            return draws.in_call(split, kind.rules) if len(sizes) > 1 else nullcontext()

        call = Call(plain, given, cuts, sizes, dim, drawing)
        if self._asked is not None:
            return self._train(call, module, model)
        if call.learning and self.asked_schedule == "1f1b":
            self.stage.views.warn(NOT_1F1B)
        done = model.schedule.forward(call)
        if module.training:
            self._share_buffers(model.schedule.cutting)
        if not torch.is_grad_enabled() or not any(done.needs_grad):
            return done.output
        return WayBack(self.stage, model, done, leaves, cuts, sizes, dim).output()

    def _kind(
        self, plain: Callable[..., Any], module: nn.Module, model: StagedModel, given: Any, batch: int, cuts: list[int]
    ) -> _Kind:
        """How to cut this call into micro-batches: proven at the first call of its kind."""
        leaves = tree.leaves(given)
        rows = max(2, min(batch, self.chunks))
        if batch < 2 or self.chunks < 2:
            return _Kind(1)
        types = tuple(map(_kind_of, leaves))
        key = (module.training, self.stage.views.switches(module), tree.structure(given), tuple(cuts), types)
        kinds = self._kinds.setdefault(module, {})
        if key not in kinds or kinds[key].calls == 1:  # proven twice: the first batch may be made up
            why = ""
            if any(isinstance(m, BatchNorm) and (m.training or not m.track_running_stats) for m in module.modules()):
                why = "it has batch norm, which sees the whole batch"
            else:
                rules, why = self._prove(plain, module, model, given, batch, cuts, rows)
            kinds[key] = _Kind(1, calls=2) if why else _Kind(self.chunks, rules, 1 + (key in kinds))
            if why:
                self.stage.views.warn(
                    f"The model {name_of(module)} is not cut into micro-batches, because {why}: its stages compute one "
                    "after the other, and the pipeline is no faster than one worker."
                )
        return kinds[key]

    def _prove(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        model: StagedModel,
        given: Any,
        batch: int,
        cuts: Any,
        rows: int,
    ) -> tuple[tuple[DrawRule, ...], str]:
        """Runs a few rows through the pipeline at once and in micro-batches. Returns the rules of this stage's random
        draws, and why the outputs differ, if they do."""
        dim, draws, few = self.stage.run.batch_dim, self.stage.views.draws, min(batch, FEW * rows + 1)
        some, positions = self._few(given, few), list[Position]()
        told, why = set(draws.told), ""
        with undisturbed(module, still=()), woken(asleep(module)):
            start = streams.packed()
            try:
                at_once = Call(plain, some, cuts, [few], dim, lambda _: _noted(positions, draws.rehearsal(None, ())))
                whole = model.schedule.forward(at_once)
                drawn = tuple(positions[0].drawn or ()) if positions else ()
                tensors = [leaf for leaf in tree.leaves(whole.output) if isinstance(leaf, torch.Tensor)]
                if not tensors or any(t.dim() <= dim or not t.shape[dim] or t.shape[dim] % few for t in tensors):
                    return (), "its output has no rows"
                streams.put(start)
                positions.clear()
                apart = Call(
                    *(plain, some, cuts, _sizes(few, rows), dim),
                    lambda split: _noted(positions, draws.rehearsal(split, drawn)),
                )
                parts = model.schedule.forward(apart)
                same = map(_is_same, tree.leaves(parts.output), tree.leaves(whole.output))
                why = "" if all(same) else "its output depends on which rows are computed together"
            except PacelineError:
                raise
            except Exception as error:  # the same on all workers
                why = f"with a part of the batch it raised {type(error).__name__}: {error}"
        if draws.told - told:
            why = f"it has {min(draws.told - told)}"
            draws.told.clear()
            draws.told.update(told)
        why = next(filter(None, self.group.gather_objects(why, "the proof of micro-batches")), "")
        return tuple(positions[-1].found) if positions else (), why

    # -- a model ---------------------------------------------------------------------------------------------------

    def _cut(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, before: StagedModel | None
    ) -> StagedModel | None:
        """The model in stages, proven in its present mode; None if it runs whole on every worker. `before`: as it was
        cut in its other mode."""
        initialise_lazy(plain, module, *given)
        known = None if before is None else before.schedule.cutting
        asked = (self.stages, self.cut, None if known is None else known.segments.cuts)
        try:
            try:
                cutting = cut_model(self.group, plain, module, self._few(given, FEW), *asked)
            except PacelineError:
                raise
            except Exception:  # a model for one batch size. If it raises again, so would the call
                cutting = cut_model(self.group, plain, module, given, *asked)
        except ScriptError as why:
            if not self._has_cut:
                raise
            self.stage.views.warn(f"{why.message} Therefore every worker computes it whole.")
            return None
        self._has_cut = True
        if known is not None:
            cutting = known.also(cutting)
        owners = cutting.owners()
        parameters = list(module.parameters())
        mine = [number for number, p in enumerate(parameters) if self.group.rank in owners[p]]
        device = next((p.device for p in parameters), torch.device("cpu"))
        if before is None:
            self._tell_stages(cutting, owners)
        proven = {module.training} | (set() if before is None else before.proven)
        schedule = Schedule(self.group, self.post, cutting, device, self._clock)
        return StagedModel(schedule, parameters, mine, proven, parts_of(module))

    def _few(self, given: Any, rows: int) -> Any:
        """The arguments with a few rows of the batch."""
        leaves, dim = tree.leaves(given), self.stage.run.batch_dim
        batch, cuts = _rows_of(leaves, dim)
        few = [
            leaf.detach().narrow(dim, 0, min(batch, rows)).clone() if number in cuts else leaf
            for number, leaf in enumerate(leaves)
        ]
        return tree.rebuild(given, iter(few))

    def _tell_stages(self, cutting: Cutting, owners: dict[nn.Parameter, tuple[int, ...]]) -> None:
        counts = [sum(p.numel() for p, where in owners.items() if stage in where) for stage in range(self.stages)]
        begins = ("the input", *cutting.segments.cuts)
        told = "; ".join(
            f"stage {n} from {begin}, {count:,} parameters"
            for n, (begin, count) in enumerate(zip(begins, counts, strict=True))
        )
        self.stage.pulse.notice(f"The model {name_of(cutting.segments.module)} runs as a pipeline: {told}.")

    def _share_buffers(self, cutting: Cutting) -> None:
        """Gives every worker the buffers that training has changed (running statistics): their stage has changed them,
        and the script may save them."""
        kinds: dict[torch.dtype, list[tuple[torch.Tensor, int]]] = {}
        for buffer, owner in cutting.owner_of_buffers():
            kinds.setdefault(buffer.dtype, []).append((buffer, owner))
        for dtype, owned in kinds.items():
            mine = [buffer.reshape(-1) for buffer, owner in owned if owner == self.group.rank]
            sizes = [sum(b.numel() for b, owner in owned if owner == rank) for rank in range(self.group.world)]
            device = owned[0][0].device
            flat = torch.cat(mine) if mine else torch.empty(0, dtype=dtype, device=device)
            whole = self.group.gather_rows(flat, 0, sizes, "the buffers of the stages")
            at = 0
            for buffer, owner in sorted(owned, key=lambda pair: pair[1]):
                if owner != self.group.rank:  # its own backward may need the buffer as it is
                    buffer.copy_(whole[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()

    def tell_bubble(self) -> None:
        """Says how long stages waited. Every worker calls it."""
        clock = torch.tensor([self._clock.idle, self._clock.total], dtype=torch.float64, device="cpu")
        clocks = self.group.gather_vectors(clock, "the idle time of the stages").tolist()
        total = sum(total for _, total in clocks)
        if not total:
            return
        predicted = (self.stages - 1) / (self._used + self.stages - 1)
        each = ", ".join(f"stage {n} {idle / (total or 1):.0%}" for n, (idle, total) in enumerate(clocks))
        self.stage.pulse.notice(
            f"Pipeline bubble with {self.stages} stages and {self._used} micro-batches: {predicted:.0%} predicted for "
            f"even stages, {sum(idle for idle, _ in clocks) / total:.0%} of the time in the model measured ({each})."
        )


class _Seams:
    """What a pipeline does at the seams."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._stage, self._losses = pipeline, pipeline.stage, LossCheck()

    def on_model(self, module: nn.Module) -> None:
        """Broadcasts rank 0's weights and buffers at the first call."""
        tensors = [t for t in (*module.parameters(), *module.buffers()) if not t.is_meta and not is_lazy(t)]
        broadcast_all(self._stage.group, tensors, "the model's weights")

    def after_backward(self, losses: list[torch.Tensor]) -> None:
        """All workers must have computed the same loss."""
        loss = losses[0]
        on_host = is_number(loss) and loss.device.type == "cpu"
        shown = torch.tensor(
            [float(loss.detach()) if on_host else self._losses.late(loss)], dtype=torch.float64, device="cpu"
        )
        found = self._stage.group.gather_vectors(shown, "the loss").flatten().tolist()
        self._losses.compare(found, late=not on_host)

    def on_end(self) -> None:
        self._losses.end(self._stage.group)
        self._pipeline.tell_bubble()
        self._pipeline.post.close()


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    return leaf if isinstance(leaf, VALUES) else type(leaf)


def _rows_of(leaves: list[Any], dim: int) -> tuple[int, list[int]]:
    """The number of rows of the batch, and the leaves that have them."""
    shapes = {n: leaf.shape for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() > dim}
    batch = next((shape[dim] for shape in shapes.values()), 0)
    return batch, [number for number, shape in shapes.items() if shape[dim] == batch]


def _sizes(batch: int, chunks: int) -> list[int]:
    n = max(1, min(batch, chunks))
    return [batch * (r + 1) // n - batch * r // n for r in range(n)]


@contextmanager
def _noted(positions: list[Position], rehearsal: Any) -> Iterator[None]:
    with rehearsal as at:
        positions.append(at)
        yield


def _is_same(found: Any, expected: Any) -> bool:
    return close(found, expected) if isinstance(expected, torch.Tensor) else bool(found == expected)
