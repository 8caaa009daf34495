"""GPipe: the micro-batches of one call go through the stages, one behind the other, and back in the backward.

Every worker calls `forward` and `backward` of its stage in the same order. Activations go to the next stage, their
gradients come back; the last stage's outputs go to all workers. If a peer is gone, the receive that misses it raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec
import torch

from paceline.comm.group import Group
from paceline.comm.network.post import Post
from paceline.errors import PacelineError, PeerRaisedError, ScriptError
from paceline.script import tree
from paceline.script.slicing.crossings import Split
from paceline.script.slicing.together import Raised, describe, rebuild, set_streams
from paceline.strategies.pipelined import streams
from paceline.strategies.pipelined.cutting import Cutting
from paceline.strategies.pipelined.segment import CannotCut, Parcel

Drawing = Callable[[Split], AbstractContextManager[Any]]
OUTPUT = "the output of the last stage"
ACTIVATIONS, GRADIENTS = "the activations of the previous stage", "the gradients of the next stage"


@dataclass(frozen=True, slots=True)
class Turn:
    """A micro-batch in the place of a worker: `Split` asks only for its number and for how many there are."""

    rank: int
    world: int

    def gather_rows(self, *_: Any) -> Any:
        raise CannotCut("it draws random numbers whose count depends on all rows")


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
    drawing: Drawing = field(default=lambda split: nullcontext())
    learning: bool = field(default_factory=torch.is_grad_enabled)
    streams: Any = None  # the script's random streams where this stage begins: the same for all micro-batches


@dataclass(slots=True)
class Pass:
    """One call: its outputs, and its micro-batches until their backward."""

    output: Any
    tensors: list[torch.Tensor]  # among the leaves of the output
    needs_grad: list[bool]
    name: str = ""  # of the output's gradient function, which `print` shows
    chunks: list[Chunk] = field(default_factory=list)


class Schedule:
    """The calls of one model on one stage."""

    def __init__(self, group: Group, post: Post, cutting: Cutting, device: torch.device, clock: Clock) -> None:
        self.group, self.post, self.cutting, self.device, self.clock = group, post, cutting, device, clock
        self.stage, self.last = group.rank, group.world - 1

    def forward(self, call: Call) -> Pass:
        """Runs this stage over the micro-batches of a call. If a stage raises, all workers raise."""
        since = time.perf_counter()
        outputs: list[Any] = []
        chunks: list[Chunk] = []
        error: Exception | None = None  # of this stage
        raised: bytes | None = None  # the error of this stage or of one before, for the other workers
        for turn in range(len(call.sizes)):
            parcel = self.receive(call.learning) if self.stage else None
            if isinstance(parcel, bytes):
                raised, parcel = raised or parcel, None
            if raised is None:
                try:
                    output, chunk = self.compute(call, turn, parcel)
                    outputs.append(output)
                    if call.learning:
                        chunks.append(chunk)
                except PacelineError:
                    raise
                except Exception as own:
                    error, raised = own, msgspec.msgpack.encode(describe(own, []))
            if raised is not None and self.stage < self.last:
                self.post.send(self.stage + 1, raised, [])
        done = self._share(outputs, call.dim, raised, error)
        done.chunks = chunks
        self.clock.total += time.perf_counter() - since
        return done

    def compute(self, call: Call, turn: int, parcel: Parcel | None) -> tuple[Any, Chunk]:
        """Runs this stage on one micro-batch, and sends the activations on. Returns the output of the last stage."""
        start, size = sum(call.sizes[:turn]), call.sizes[turn]
        if parcel is not None and parcel.rest is not None:
            call.streams = parcel.rest
        elif not turn and not self.stage and self.cutting.draws:
            call.streams = streams.packed()
        leaves = tree.leaves(call.given)
        mine, inputs = _micro_batch(
            leaves, call.cuts if len(call.sizes) > 1 else (), call.dim, start, size, call.learning
        )
        args, kwargs = tree.rebuild(call.given, iter(mine))
        split = Split(Turn(turn, len(call.sizes)), tuple(call.sizes))  # type: ignore[arg-type]
        with ExitStack() as stack:

            def begin() -> None:
                if call.streams is not None:
                    streams.put(call.streams)
                stack.enter_context(call.drawing(split))

            output, entered, left = self.cutting.segments.run(self.stage, call.plain, args, kwargs, parcel, begin=begin)
        if left is not None:
            needs = [tensor.requires_grad for tensor in left.tensors]
            after = streams.packed() if self.cutting.draws and not turn else None
            self.post.send(self.stage + 1, [left.shapes, needs, after], left.tensors)
        leaving = tree.leaves(output) if left is None else left.tensors
        leaving = [t for t in leaving if isinstance(t, torch.Tensor) and t.requires_grad]
        return output, Chunk([t for t in entered if t.requires_grad], leaving, inputs, (start, size))

    def receive(self, learning: bool) -> Parcel | bytes:
        """The activations of a micro-batch, or the error of an earlier stage."""
        told, tensors = self._take(self.stage - 1, ACTIVATIONS)
        if isinstance(told, bytes):
            return told
        shapes, needs, at = told
        found = [t.to(self.device) for t in tensors if t is not None]
        for tensor, needs_grad in zip(found, needs, strict=True):
            tensor.requires_grad_(needs_grad and learning)
        return Parcel(found, shapes, at)

    def _take(self, source: int, what: str) -> Any:
        since = time.perf_counter()
        found = self.post.receive(source, what)
        self.clock.idle += time.perf_counter() - since
        return found

    def _share(self, outputs: list[Any], dim: int, raised: bytes | None, error: Exception | None) -> Pass:
        """Gives every worker the outputs of the last stage, or the error of any stage."""
        since = time.perf_counter()
        told: Any = raised
        tensors: list[torch.Tensor] = []
        if self.stage == self.last and raised is None:
            try:
                whole = [_join(column, dim) for column in zip(*map(tree.leaves, outputs), strict=True)]
                tensors = [leaf for leaf in whole if isinstance(leaf, torch.Tensor)]
                heads = [[list(t.shape), str(t.dtype).removeprefix("torch."), t.requires_grad] for t in tensors]
                at = streams.packed() if self.cutting.draws else None
                told = [
                    _nest(tree.rebuild(outputs[0], iter(whole)), self.cutting.template),
                    heads,
                    at,
                    _name(outputs[0]),
                ]
            except Exception as own:  # rows that do not fit together
                error, told = own, msgspec.msgpack.encode(describe(own, []))
        found = self.group.gather_objects(told if self.stage == self.last else None, OUTPUT)[self.last]
        if isinstance(found, bytes):
            self._raise(found, error)
        nest, heads, at, name = found
        if nest is None:
            raise ScriptError(
                "The model returns an object that the workers of a pipeline cannot send to each other.",
                advice="Choose another strategy: --strategy mirrored",
            )
        if at is not None:
            streams.put(at)
        shared = []
        for number, (shape, dtype, _) in enumerate(heads):
            empty = torch.empty(0, dtype=getattr(torch, dtype), device=self.device)
            mine = tensors[number].detach().reshape(-1).to(self.device) if tensors else empty
            count = torch.Size(shape).numel()
            sizes = [0] * self.last + [count]
            flat = self.group.gather_rows(mine, 0, sizes, OUTPUT)
            # No view: the script may change it in place.
            stride = flat.view(shape).stride()
            shared.append(empty.set_(flat.untyped_storage(), flat.storage_offset(), shape, stride))
        if self.stage < self.last:
            self.clock.idle += time.perf_counter() - since
        output = _rebuilt(nest, self.cutting.template, iter(shared))
        return Pass(output, shared, [bool(needs) for *_, needs in heads], name)

    def _raise(self, raised: bytes, own: Exception | None) -> NoReturn:
        """Raises the exception of one stage on every worker."""
        if own is not None:
            raise own
        found = msgspec.msgpack.decode(raised, type=Raised)
        set_streams(found)
        error = rebuild(found) or RuntimeError(found.text)
        error.__cause__ = PeerRaisedError(f"Another stage of the pipeline raised this:\n{found.trace}")
        raise error

    def backward(
        self,
        done: Pass,
        grads: Sequence[torch.Tensor | None],
        parameters: Sequence[torch.Tensor],
        dim: int,
        *,
        keep: bool,
    ) -> tuple[list[torch.Tensor | None], list[list[torch.Tensor | None]]]:
        """Gradients of this stage's parameters, and of the inputs of each micro-batch. `grads`: of the output's tensors
        that need one. `keep`: the graph is used again."""
        since = time.perf_counter()
        found: list[torch.Tensor | None] = [None] * len(parameters)
        of_inputs: list[list[torch.Tensor | None]] = []
        for chunk in done.chunks:
            own = [_rows(g, leaf, dim, chunk, done) for g, leaf in zip(grads, chunk.left, strict=False)]
            of_parameters, column = self.go_back(chunk, own, parameters, keep=keep)
            of_inputs.append(column)
            add_up(found, of_parameters)
        self.clock.total += time.perf_counter() - since
        return found, of_inputs

    def go_back(
        self,
        chunk: Chunk,
        grads: Sequence[torch.Tensor | None],
        parameters: Sequence[torch.Tensor],
        *,
        keep: bool,
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """The backward of one micro-batch: gradients of this stage's parameters and of the inputs; those of the
        activations go to the previous stage. `grads`: of the outputs, for the last stage; other stages receive them."""
        if self.stage < self.last:
            grads = [None if g is None else g.to(self.device) for g in self._take(self.stage + 1, GRADIENTS)[1]]
        pairs = [(t, g) for t, g in zip(chunk.left, grads, strict=True) if g is not None]
        wanted = [*chunk.entered, *chunk.inputs, *parameters]
        got: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            ends, starts = zip(*pairs, strict=True)
            with _without_hooks(parameters):
                got = torch.autograd.grad(ends, wanted, starts, retain_graph=keep, allow_unused=True)
        many, more = len(chunk.entered), len(chunk.entered) + len(chunk.inputs)
        if self.stage:
            self.post.send(self.stage - 1, None, got[:many])
        if not keep:
            chunk.left = []
        return list(got[more:]), list(got[many:more])


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


def _rows(grad: torch.Tensor | None, leaf: torch.Tensor, dim: int, chunk: Chunk, done: Pass) -> torch.Tensor | None:
    """A micro-batch's rows of an output's gradient. An output may have several rows for each row of the batch."""
    if grad is None or len(done.chunks) == 1:
        return grad
    batch = sum(size for _, size in (one.rows for one in done.chunks))
    many = grad.shape[dim] // batch
    return grad.narrow(dim, chunk.rows[0] * many, leaf.shape[dim])


def _join(column: tuple[Any, ...], dim: int) -> Any:
    first = column[0]
    if len(column) == 1 or not isinstance(first, torch.Tensor):
        return first
    return torch.cat([leaf.detach() for leaf in column], dim).requires_grad_(first.requires_grad)


def _name(output: Any) -> str:
    tensor = next((t for t in tree.leaves(output) if isinstance(t, torch.Tensor) and t.grad_fn is not None), None)
    return "" if tensor is None else type(tensor.grad_fn).__name__


def _nest(output: Any, template: Any) -> Any:
    """A plain value from which every worker can build the output: None if that is not possible."""
    if isinstance(output, torch.Tensor):
        return {"tensor": True}
    if type(output) in (list, tuple) or (type(output) is dict and all(isinstance(key, str) for key in output)):
        items = output.items() if isinstance(output, dict) else enumerate(output)
        inner = [[key, _nest(item, None)] for key, item in items]
        if all(item is not None for _, item in inner):
            return {"kind": type(output).__name__, "items": inner}
    if isinstance(output, (bool, int, float, str, type(None))):
        return {"plain": output}
    if template is None or tree.structure(output) != tree.structure(template):
        return None
    plain = all(leaf is None or isinstance(leaf, torch.Tensor) for leaf in tree.leaves(output))
    return {"template": True} if plain else None


def _rebuilt(nest: Any, template: Any, tensors: Any) -> Any:
    if "tensor" in nest:
        return next(tensors)
    if "plain" in nest:
        return nest["plain"]
    if "template" in nest:
        return tree.replace(template, lambda leaf: next(tensors) if isinstance(leaf, torch.Tensor) else leaf)
    items = [(key, _rebuilt(item, None, tensors)) for key, item in nest["items"]]
    if nest["kind"] == "dict":
        return dict(items)
    return (list if nest["kind"] == "list" else tuple)(item for _, item in items)
