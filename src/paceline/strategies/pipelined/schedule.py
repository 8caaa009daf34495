"""GPipe: the micro-batches of one call go through the stages, one behind the other, and back in the backward.

Every worker calls `forward` and `backward` of its stages in the same order. Activations go to the next stage, their
gradients come back; the last stage's outputs go to all workers. If a stage raises, all workers raise (see `failure`).
If a peer is gone, the receive that misses it raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.comm.ending import CalledOff
from paceline.comm.group import Group
from paceline.comm.network.post import Post
from paceline.errors import PacelineError, ScriptError
from paceline.script import tree
from paceline.script.proof.plan import SlicePlan
from paceline.script.proof.recorder import CannotTry
from paceline.script.rows.crossings import Split, laid_out, memory_order
from paceline.script.seams.recomputing import starts_here
from paceline.script.slicing import parts
from paceline.script.slicing.loss_denominators import Averages
from paceline.spread.stage_tensor import Team
from paceline.strategies.pipelined import orders, outputs, streams
from paceline.strategies.pipelined.cutting import Cutting
from paceline.strategies.pipelined.failure import Failure
from paceline.strategies.pipelined.segment import Parcel

Drawing = Callable[[Split, int], AbstractContextManager[Any]]  # the int: random draws made by earlier stages
OUTPUT = "the output of the last stage"
ACTIVATIONS, GRADIENTS = "the activations of the previous stage", "the gradients of the next stage"


@dataclass(slots=True)
class Clock:
    """Seconds of this worker in pipelined calls, and those in which it waited for another stage."""

    total: float = 0.0
    idle: float = 0.0
    most_in_flight: int = 0  # micro-batches between their forward and their backward, in training steps


@dataclass(slots=True)
class Chunk:
    """What the backward of a micro-batch needs."""

    entered: list[torch.Tensor]  # activations that came from the previous stage
    left: list[torch.Tensor]  # those that went on, or the outputs
    inputs: list[torch.Tensor]  # own copies of the call's arguments that need a gradient
    rows: tuple[int, int]  # first row and number of rows


@dataclass(slots=True)
class Call:
    """A call of the model, to be computed in micro-batches of these sizes."""

    plain: Callable[..., Any]
    given: Any  # the arguments
    cuts: Sequence[int]  # the leaves of the arguments that have rows, along `dim`
    sizes: Sequence[int]
    dim: int
    drawing: Drawing = field(default=lambda split, made: nullcontext())
    plan: SlicePlan | None = None  # by which the outputs of micro-batches are combined
    averages: Averages = field(default_factory=Averages)  # that notes the denominators of losses
    learning: bool = field(default_factory=torch.is_grad_enabled)
    # Where a stage begins, for all micro-batches: the random streams, and the number of draws made so far.
    streams: dict[int, Any] = field(default_factory=dict)
    end: Any = None  # random streams behind the last stage


@dataclass(slots=True)
class Pass:
    """One call: its outputs, and its micro-batches until their backward."""

    output: Any
    tensors: list[torch.Tensor]  # among the leaves of the output
    needs_grad: list[bool]
    name: str = ""  # of the output's gradient function, which `print` shows
    # Denominators of losses, by number among the output's tensors; and whether every target counts. None: the losses of
    # the micro-batches do not give the batch's, so that the call must be computed in one.
    counted: tuple[dict[int, float], bool] | None = None
    factors: list[torch.Tensor | None] = field(default_factory=list)  # of the tensors that need a gradient: see `parts`
    turns: int = 1
    batch: int = 0
    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict)  # by micro-batch and stage


@dataclass(frozen=True, slots=True)
class Joined:
    """The output of a call on the worker with the last stage."""

    whole: Sequence[Any]  # its leaves
    heads: list[Any]  # of its tensors: shape, dtype, order in memory, and whether it needs a gradient
    factors: list[torch.Tensor | None]
    counted: tuple[list[tuple[int, float]], bool]

    @classmethod
    def of(
        cls,
        whole: Sequence[Any],
        orders: Sequence[Sequence[int]],
        columns: Sequence[Sequence[Any]] = (),
        plan: SlicePlan | None = None,
        weights: Sequence[torch.Tensor | None] = (),
        all_count: bool = True,
    ) -> Joined:
        heads: list[Any] = []
        factors: list[torch.Tensor | None] = []
        divisors: list[tuple[int, float]] = []
        for n, leaf in enumerate(whole):
            if not isinstance(leaf, torch.Tensor):
                continue
            weight = weights[n] if weights else None
            needs_grad = any(piece.requires_grad for piece in (columns[n] if columns else [leaf]))
            if plan is not None and weight is not None and plan.outputs[n].kind == "average":
                divisors.append((len(heads), float(weight.sum())))
            heads.append([list(leaf.shape), str(leaf.dtype).removeprefix("torch."), [*orders[n]], needs_grad])
            if needs_grad:
                factors.append(None if weight is None or plan is None else parts.factors_of(plan.outputs[n], weight))
        return cls(whole, heads, factors, (divisors, all_count))


class Schedule:
    """The calls of one model on one worker, which has one stage or several: see `orders`."""

    def __init__(
        self, team: Team, rows: Group, post: Post, cutting: Cutting, device: torch.device, clock: Clock
    ) -> None:
        """`team`: the workers of one pipeline. `rows`: those with the same stages, of all replicas of the pipeline."""
        self.team, self.group, self.rows, self.post = team, team.group, rows, post
        self.cutting, self.device, self.clock = cutting, device, clock
        self.last = cutting.segments.last  # stage
        self.parts = (self.last + 1) // team.group.world
        self._early: dict[tuple[Any, ...], Any] = {}  # messages that came before they were asked for

    def stage_of(self, part: int) -> int:
        return part * self.group.world + self.group.rank

    @property
    def has_last(self) -> bool:
        """Whether this worker has the last stage."""
        return self.group.rank == self.group.world - 1

    def forward(self, call: Call) -> Pass:
        """Runs this worker's stages over the micro-batches of a call. If a stage raises, all workers raise."""
        since, failure = time.perf_counter(), Failure(self.rows)
        found: list[Any] = []
        chunks: dict[tuple[int, int], Chunk] = {}
        with nullcontext() if call.plan is None else call.averages.inside():
            before = call.averages.count
            for op in orders.forwards(self.group.world, len(call.sizes), self.parts):
                stage = self.stage_of(op.part)
                done = self.advance(call, op.turn, stage, failure)
                if done is not None:
                    if stage == self.last:
                        found.append(done[0])
                    if call.learning:
                        chunks[op.turn, stage] = done[1]
            shared = self._share(call, found, before, failure)
        shared.turns, shared.batch, shared.chunks = len(call.sizes), sum(call.sizes), chunks
        self.clock.total += time.perf_counter() - since
        return shared

    def advance(self, call: Call, turn: int, stage: int, failure: Failure) -> tuple[Any, Chunk] | None:
        """Receives a micro-batch, computes it in one stage and sends it on: the output of the last stage, and what the
        backward needs. After a failure it computes nothing, and sends the failure."""
        parcel: Parcel | None = None
        if stage:
            told, tensors = self._take(stage - 1, ("forward", stage, turn), ACTIVATIONS)
            if isinstance(told, bytes):
                failure.hear(told)
            else:
                shapes, needs, memory, at = told
                came = [t.to(self.device) for t in tensors if t is not None]
                parcel = Parcel([laid_out(t, order) for t, order in zip(came, memory, strict=True)], shapes, at)
                for tensor, needs_grad in zip(parcel.tensors, needs, strict=True):
                    tensor.requires_grad_(needs_grad and call.learning)
        left: Parcel | None = None
        done: tuple[Any, Chunk] | None = None
        if not failure:
            try:
                output, chunk, left = self._compute(call, turn, stage, parcel)
                done = output, chunk
            except PacelineError:
                raise
            except (Exception, CalledOff) as error:
                failure.note(error)
        if stage < self.last:
            told, tensors = failure.told, []
            if left is not None:
                needs, memory = [t.requires_grad for t in left.tensors], [[*memory_order(t)] for t in left.tensors]
                told, tensors = [left.shapes, needs, memory, left.rest], left.tensors
            self._send(stage + 1, ("forward", stage + 1, turn), told, tensors)
        return done

    def _compute(self, call: Call, turn: int, stage: int, parcel: Parcel | None) -> tuple[Any, Chunk, Parcel | None]:
        """Runs a stage on one micro-batch. Returns the output of the last stage, or the parcel for the next one."""
        start, size, draws = sum(call.sizes[:turn]), call.sizes[turn], self.cutting.draws
        if parcel is not None and parcel.rest is not None:
            call.streams[stage] = parcel.rest
        elif not turn and not stage and draws:
            call.streams[stage] = [streams.packed(), 0]
        leaves = tree.leaves(call.given)
        mine, inputs = _micro_batch(
            leaves, call.cuts if len(call.sizes) > 1 else (), call.dim, start, size, call.learning
        )
        args, kwargs = tree.rebuild(call.given, iter(mine))
        split = Split(parts.Turn(turn, len(call.sizes)), tuple(call.sizes))  # type: ignore[arg-type]
        at: Any = None
        with ExitStack() as stack:

            def begin() -> None:
                nonlocal at
                state, made = call.streams.get(stage, (None, 0))
                if state is not None:
                    streams.put(state)
                at = stack.enter_context(call.drawing(split, made))
                starts_here()

            stack.enter_context(self.team.computing(self.cutting.segments.module))
            output, entered, left = self.cutting.segments.run(stage, call.plain, args, kwargs, parcel, begin=begin)
            output = tree.replace(output, self.team.inside.plain)
        if left is not None:
            left.tensors = list(map(self.team.inside.plain, left.tensors))
            left.rest = [streams.packed(), 0 if at is None else at.made] if draws and not turn else None
        elif draws:
            call.end = streams.packed()
        leaving = tree.leaves(output) if left is None else left.tensors
        leaving = [t for t in leaving if isinstance(t, torch.Tensor) and t.requires_grad]
        return output, Chunk([t for t in entered if t.requires_grad], leaving, inputs, (start, size)), left

    def _send(self, stage: int, key: tuple[Any, ...], told: Any, tensors: Sequence[torch.Tensor | None]) -> None:
        self.post.send(stage % self.group.world, [list(key), told], tensors)

    def _take(self, stage: int, key: tuple[Any, ...], what: str) -> Any:
        """The message with this key from the worker of this stage, who may send messages for other parts before."""
        since = time.perf_counter()
        while key not in self._early:
            (found, told), tensors = self.post.receive(stage % self.group.world, what)
            self._early[tuple(found)] = told, tensors
        self.clock.idle += time.perf_counter() - since
        return self._early.pop(key)

    def _share(self, call: Call, found: list[Any], before: int, failure: Failure) -> Pass:
        """Gives every worker the outputs of the last stage, or the error of any stage. `before`: averages taken before
        the call."""
        since = time.perf_counter()
        told: Any = None
        tensors: list[torch.Tensor] = []
        factors: list[torch.Tensor | None] = []
        if self.has_last and not failure:
            try:
                joined = self._joined(call, found, before)
                tensors = [] if joined is None else [t for t in joined.whole if isinstance(t, torch.Tensor)]
                if joined is not None:
                    factors = joined.factors
                    nested = outputs.nest(tree.rebuild(found[0], iter(joined.whole)), self.cutting.template)
                    told = [nested, joined.heads, call.end, outputs.gradient_name(found[0]), joined.counted]
            except Exception as error:  # rows that do not fit together
                failure.note(error)
        known = self.group.gather_objects(failure.told if failure else told, OUTPUT)
        if isinstance(known[-1], bytes):
            failure.raise_first([known[-1]])
        if known[-1] is None:
            return Pass(None, [], [])
        nested, heads, at, name, (divisors, all_count) = known[-1]
        if nested is None:
            raise ScriptError(
                "The model returns an object that the workers of a pipeline cannot send to each other.",
                advice="Choose another strategy: --strategy mirrored",
            )
        if at is not None:
            streams.put(at)
        shared = []
        for number, (shape, dtype, order, _) in enumerate(heads):
            empty = torch.empty(0, dtype=getattr(torch, dtype), device=self.device)
            mine = tensors[number].detach().reshape(-1).to(self.device) if tensors else empty
            count = torch.Size(shape).numel()
            sizes = [0] * (self.group.world - 1) + [count]
            flat = self.group.gather_rows(mine, 0, sizes, OUTPUT)
            # No view: the script may change it in place.
            stride = flat.view(shape).stride()
            shared.append(laid_out(empty.set_(flat.untyped_storage(), flat.storage_offset(), shape, stride), order))
        if not self.has_last:
            self.clock.idle += time.perf_counter() - since
        output = outputs.rebuilt(nested, self.cutting.template, iter(shared))
        needs_grad = [bool(needs) for *_, needs in heads]
        return Pass(output, shared, needs_grad, name, (dict(divisors), all_count), factors)

    def _joined(self, call: Call, found: list[Any], before: int) -> Joined | None:
        """The output of the call, from those of its micro-batches; None if they do not give it."""
        columns, plan = list(zip(*map(tree.leaves, found), strict=True)), call.plan
        if plan is None:
            (only,) = zip(*columns, strict=True)
            return Joined.of(only, [memory_order(leaf) if isinstance(leaf, torch.Tensor) else () for leaf in only])
        if len(plan.outputs) != len(columns):
            raise ScriptError(
                f"The model returns {len(columns)} values, and returned {len(plan.outputs)} when it was cut into "
                "stages: a stage does not see what hooks and attributes have kept in another one.",
                advice="Choose another strategy: --strategy mirrored",
            )
        all_count = not plan.averages or call.averages.all_count()
        if len(found) > 1 and plan.all_count and not all_count:
            return None
        weights: list[torch.Tensor | None]
        try:
            weights = [
                parts.weights_of(column, n, plan, call.sizes, call.averages, before) for n, column in enumerate(columns)
            ]
        except CannotTry:
            if len(found) > 1:
                return None
            weights = [None] * len(columns)
        with torch.no_grad():
            whole = [
                column[0] if len(column) == 1 else parts.joined(column, role, call.sizes, each)
                for column, role, each in zip(columns, plan.outputs, weights, strict=True)
            ]
        return Joined.of(whole, [role.order for role in plan.outputs], columns, plan, weights, all_count)

    def backward(
        self,
        done: Pass,
        grads: Sequence[torch.Tensor | None],
        parameters: Sequence[torch.Tensor],
        dim: int,
        failure: Failure,
        *,
        keep: bool,
    ) -> tuple[list[torch.Tensor | None], list[list[torch.Tensor | None]]]:
        """Gradients of this worker's parameters, and of the inputs of each micro-batch. `grads`: of the output's
        tensors that need one. `keep`: the graph is used again. The caller tells the other workers of a failure."""
        since = time.perf_counter()
        found: list[torch.Tensor | None] = [None] * len(parameters)
        of_inputs: list[list[torch.Tensor | None]] = [[] for _ in range(done.turns)]
        for op in orders.backwards(self.group.world, done.turns, self.parts):
            stage = self.stage_of(op.part)
            chunk, own = done.chunks[op.turn, stage], list[torch.Tensor | None]()
            if stage == self.last:
                ends = zip(grads, chunk.left, done.factors, strict=False)
                own = [_share(g, leaf, dim, chunk, op.turn, done, factors) for g, leaf, factors in ends]
            of_parameters, column = self.go_back(chunk, op.turn, stage, own, parameters, failure, keep=keep)
            if of_inputs[op.turn]:
                add_up(of_inputs[op.turn], column)
            else:
                of_inputs[op.turn] = column
            add_up(found, of_parameters)
        self.clock.total += time.perf_counter() - since
        return found, of_inputs

    def go_back(
        self,
        chunk: Chunk | None,
        turn: int,
        stage: int,
        grads: Sequence[torch.Tensor | None],
        parameters: Sequence[torch.Tensor],
        failure: Failure,
        *,
        keep: bool,
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """The backward of one micro-batch in one stage: gradients of the parameters and of the inputs; those of the
        activations go to the previous stage. `grads`: of the outputs, for the last stage; other stages receive them.
        `chunk` is None if its forward has failed."""
        if stage < self.last:
            told, came = self._take(stage + 1, ("backward", stage, turn), GRADIENTS)
            grads = [None if g is None else g.to(self.device) for g in came]
            if told is not None:
                failure.hear(told)
        many = 0 if chunk is None else len(chunk.entered)
        more = many + (0 if chunk is None else len(chunk.inputs))
        got: Sequence[torch.Tensor | None] = [None] * (more + len(parameters))
        if chunk is not None and not failure:
            try:
                with self.team.computing(self.cutting.segments.module):  # a checkpoint computes again
                    got = _gradients(chunk, grads, parameters, keep=keep) or got
            except PacelineError:
                raise
            except (Exception, CalledOff) as error:
                failure.note(error)
        if stage:
            self._send(stage - 1, ("backward", stage - 1, turn), failure.told, [] if failure else got[:many])
        if not keep and chunk is not None:
            chunk.left = []
        return list(got[more:]), list(got[many:more])


def _gradients(
    chunk: Chunk, grads: Sequence[torch.Tensor | None], parameters: Sequence[torch.Tensor], *, keep: bool
) -> Sequence[torch.Tensor | None] | None:
    """Of what entered the stage, of the inputs and of the parameters; None if no gradient has come."""
    pairs = [(t, g) for t, g in zip(chunk.left, grads, strict=True) if g is not None]
    wanted = [*chunk.entered, *chunk.inputs, *parameters]
    if not pairs or not wanted:
        return None
    ends, starts = zip(*pairs, strict=True)
    with _without_hooks(parameters):
        return torch.autograd.grad(ends, wanted, starts, retain_graph=keep, allow_unused=True)


def add_up(total: list[torch.Tensor | None], more: Sequence[torch.Tensor | None]) -> None:
    """Adds gradients to the sums of earlier micro-batches."""
    for number, grad in enumerate(more):
        before = total[number]
        if grad is not None:
            total[number] = grad if before is None else before + grad


@contextmanager
def _without_hooks(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Hooks of the script on parameters are called with the gradient of the whole batch, by the script's backward."""
    kept = [(p, p._backward_hooks) for p in parameters if p._backward_hooks]
    for parameter, _ in kept:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in kept:
            parameter._backward_hooks = hooks


def _micro_batch(
    leaves: list[Any], cuts: Sequence[int], dim: int, start: int, size: int, learning: bool
) -> tuple[list[Any], list[torch.Tensor]]:
    """The arguments of a micro-batch, and those among them that need a gradient."""
    mine, inputs = list(leaves), []
    for number, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            continue
        if number in cuts:
            mine[number] = leaf.detach().narrow(dim, start, size)
            if dim and leaf.is_contiguous():
                mine[number] = mine[number].contiguous()
        if leaf.requires_grad and learning:
            own = mine[number].detach().requires_grad_()
            inputs.append(own)
            mine[number] = own.clone()  # the model may change it in place
    return mine, inputs


def _share(
    grad: torch.Tensor | None,
    leaf: torch.Tensor,
    dim: int,
    chunk: Chunk,
    turn: int,
    done: Pass,
    factors: torch.Tensor | None,
) -> torch.Tensor | None:
    """A micro-batch's part of an output's gradient: its rows, of which an output may have several for each row of the
    batch, or its factor in a sum."""
    if grad is None or done.turns == 1:
        return grad
    if factors is not None:
        return grad * factors[turn].to(grad.device, grad.dtype)
    many = grad.shape[dim] // done.batch
    return grad.narrow(dim, chunk.rows[0] * many, leaf.shape[dim])
