"""A model's forward and backward as CUDA graphs, each captured once and replayed as a whole.

A `GraphedCall` captures one kind of call: same structure, shapes, dtypes and parameters. A capture computes nothing, so
a replay follows and all effects happen once: running statistics, random numbers, gradients. The caller owns the
results: outputs are copies, and a gradient that the script still holds is never overwritten.

Autograd remembers on which stream a parameter was first used, and a graph is captured on a stream of its own. So all
training calls of a model that may be captured run on that stream (`aside`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from operator import attrgetter, is_, methodcaller
from sys import getrefcount
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from paceline.errors import ScriptError
from paceline.script import tree
from paceline.torch_private import BatchNorm, address_of, count_uses, parameters_in

VALUES = methodcaller("values")
VERSION = attrgetter("_version")
LEARNS, HOOKS = attrgetter("requires_grad"), attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


class GraphLayout:
    """The addresses of a model's weights and buffers, and which of them require gradients. Checked before every launch,
    so the check is fast: a graph uses the memory of its capture, even if the model has changed since."""

    def __init__(self, module: nn.Module) -> None:
        held = [place for m in module.modules() for place in (m._parameters, m._buffers, m._modules)]
        self._filled: list[dict[str, Any]] = [place for place in held if place]
        self._empty = [place for place in held if not place]
        self._held = self._all()
        self._tensors = [value for value in self._held if isinstance(value, torch.Tensor)]
        self._facts = self._look()

    def same(self) -> bool:
        held = self._all()
        unchanged = len(held) == len(self._held) and all(map(is_, held, self._held)) and not any(self._empty)
        return unchanged and self._look() == self._facts

    def versions(self) -> list[int]:
        """Counts in-place changes."""
        return list(map(VERSION, self._tensors))

    def _all(self) -> list[Any]:
        return list(chain.from_iterable(map(VALUES, self._filled)))

    def _look(self) -> Any:
        return list(map(torch.Tensor.data_ptr, self._tensors)), list(map(LEARNS, self._tensors))


Forward = Callable[..., Any]  # of a module and its arguments
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]  # of what a graph does → what launches it


class GraphedCall:
    """Forward and backward of one kind of call. A graph has one set of buffers, so only one call at a time may be
    between its forward and its backward."""

    def __init__(self, plain: Forward, module: nn.Module, given: Any, capture: Capture | None = None) -> None:
        """Captures the call. Raises torch's error, or ScriptError, if that fails; then nothing has been computed.
        `capture`: what makes a graph of a function; tests give a stand-in."""
        self._plain, self._module = plain, module
        self._output: Any = None
        self._live: list[torch.Tensor] = []  # the outputs with autograd's graph
        self._input_grads: list[torch.Tensor | None] = []
        self.parameters = [p for p in parameters_in(module) if p.requires_grad]
        self._inputs = [static(leaf) for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)]
        taken = iter(self._inputs)
        self._given = tree.replace(given, lambda leaf: next(taken) if isinstance(leaf, torch.Tensor) else leaf)
        self._kept = KeptGradients(self.parameters)
        before = left_in(module)
        capture = capture or in_one_pool()
        self._forward = capture(self._go_forward)
        if any(before.get(place) is not value for place, value in left_in(module).items()):
            raise ScriptError("the model leaves a tensor that has a gradient in an attribute.", advice=WITHOUT)
        if any(isinstance(leaf, float) for leaf in tree.leaves(self._output)):
            raise ScriptError("the model returns a float that is not a tensor.", advice=WITHOUT)
        self._differentiable = [output.requires_grad for output in self._live]
        self._upstream = [torch.empty_like(output) for output in self._live if output.requires_grad]
        with unhooked(self.parameters):
            self._capture_loss(capture)
            self._backward = capture(self._go_back)
        self._kept.seal()
        self._output = tree.replace(self._output, lambda leaf: leaf.detach() if torch.is_tensor(leaf) else leaf)
        self._outputs = [output.detach() for output in self._live]
        self._input_grads = [None if grad is None else grad.detach() for grad in self._input_grads]
        self._live.clear()  # and with it autograd's graph
        self._anchor = torch.zeros((), device=self._outputs[0].device, requires_grad=True)
        self._last: weakref.ref[Any] | None = None  # the last call: has it gone back?

    def _go_forward(self) -> list[torch.Tensor]:
        args, kwargs = self._given
        self._output = self._plain(self._module, *args, **kwargs)
        self._live = [leaf for leaf in tree.leaves(self._output) if isinstance(leaf, torch.Tensor)]
        return self._live

    def _capture_loss(self, capture: Capture) -> None:
        """A subclass captures what the script does with the outputs."""

    def _go_back(self) -> list[torch.Tensor | None]:
        learning = [output for output in self._live if output.requires_grad]
        asking = [tensor for tensor in self._inputs if tensor.requires_grad]
        found = torch.autograd.grad(learning, (*asking, *self.parameters), self._upstream, allow_unused=True)
        self._kept.capture(found[len(asking) :])
        self._input_grads = list(found[: len(asking)])
        return self._input_grads

    @property
    def is_free(self) -> bool:
        """Whether no call is between its forward and its backward."""
        last = None if self._last is None else self._last()
        return last is None or last.went_back

    def __call__(self, given: Any, *, by_name: bool) -> Any:
        """Replays the forward. `by_name`: the script uses torch.autograd.grad or backward(inputs=…), so autograd must
        see the parameters. Otherwise gradients go directly to `.grad`, which saves a tenth of a small step's time."""
        tensors = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)]
        call = _Call(direct=not by_name and not has_hooks(self.parameters))
        self._last = weakref.ref(call)
        if call.direct:
            outputs = iter(_Replay.apply(self, call, self._anchor, *tensors))
        else:
            with aside():
                outputs = iter(_Replay.apply(self, call, self._anchor, *tensors, *self.parameters))
        return tree.replace(self._output, lambda leaf: next(outputs) if torch.is_tensor(leaf) else leaf)

    def forward(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        self._fill(tensors)
        self._forward()
        return tuple(output.clone() for output in self._outputs)

    def _fill(self, tensors: Iterable[torch.Tensor]) -> None:
        for static, tensor in zip(self._inputs, tensors, strict=False):
            static.detach().copy_(tensor, non_blocking=True)

    def marks(self, outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The outputs that have no gradient."""
        return [out for out, learns in zip(outputs, self._differentiable, strict=True) if not learns]

    def backward(self, call: _Call, grads: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
        if call.went_back or self._last is None or self._last() is not call:
            raise ScriptError(
                "--mod cuda_graphs: a backward goes twice through the same call of a model.", advice=WITHOUT
            )
        call.went_back = True
        self._kept.let_go()
        wanted = (grad for grad, learns in zip(grads, self._differentiable, strict=True) if learns)
        for static, grad in zip(self._upstream, wanted, strict=True):
            static.copy_(grad)
        self._backward()
        # Autograd gets a copy, because other code may keep the gradient.
        found = (None if grad is None else grad.clone() for grad in self._input_grads)
        for_inputs = [next(found) if tensor.requires_grad else None for tensor in self._inputs]
        if call.direct:
            self._kept.hand_out()
            return for_inputs
        return [*for_inputs, *self._kept.copies()]


class _Call:
    """One call between forward and backward. Lives as long as the outputs, which hold it. `direct`: gradients go
    directly to `.grad`."""

    def __init__(self, *, direct: bool) -> None:
        self.direct, self.went_back = direct, False


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: GraphedCall, call: _Call, anchor: Any, *tensors: Any) -> tuple[torch.Tensor, ...]:
        ctx.graph, ctx.call = graph, call
        outputs = graph.forward(tensors)
        ctx.mark_non_differentiable(*graph.marks(outputs))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, None, *ctx.graph.backward(ctx.call, grads)


@cache
def _stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


@contextmanager
def aside() -> Iterator[None]:
    """Runs the block on the stream of the graphs, in order with the work before and after it."""
    here, there = torch.cuda.current_stream(), _stream()
    there.wait_stream(here)
    with torch.cuda.stream(there):
        yield
    here.wait_stream(there)


@contextmanager
def warming_up(inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """Runs a call as a capture will run it, so that compilers compile for the capture, and nothing is left to compile
    during it: compiled code is made for one state of autocast's cache."""
    for tensor in inputs:
        if tensor.is_cuda:  # its memory may be used again only when its backward, on that stream, is done
            tensor.record_stream(_stream())
    with casting_anew(), aside():
        yield


@contextmanager
def casting_anew() -> Iterator[None]:
    """Turns autocast's cache off: a cast that is cached would not be captured."""
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caching)


def in_one_pool() -> Capture:
    """Captures functions as graphs that share their memory: they must be launched in the order of their captures, and
    of those captured after the first, one."""
    pool = torch.cuda.graph_pool_handle()

    def capture(body: Callable[[], Any]) -> Callable[[], Any]:
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, pool):
            body()
        return graph.replay

    return capture


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Captures the kernels of the block without computing them. If the capture fails, restores the random state."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    state = generator.clone_state()
    try:
        # thread_local, because loaders pin memory in other threads meanwhile.
        with (
            casting_anew(),
            torch.cuda.graph(graph, pool=pool, stream=_stream(), capture_error_mode="thread_local"),
        ):
            yield
    except BaseException:
        generator.graphsafe_set_state(state)
        raise


@contextmanager
def unhooked(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Removes gradient hooks during the block: autograd calls them after a replay, and a capture would call them
    again."""
    kept = [(hooks, dict(hooks)) for p in parameters if (hooks := p._backward_hooks)]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, items in kept:
            hooks.update(items)


def static(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)


def left_in(module: nn.Module) -> dict[tuple[int, str], torch.Tensor]:
    """Attributes of a model that hold a tensor with a gradient function."""
    return {
        (id(owner), name): value
        for owner in module.modules()
        for name, value in vars(owner).items()
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    }


def kind_of(given: Any) -> Any:
    """A key that is equal for two calls that one graph can serve."""
    leaves = tuple(
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad) if torch.is_tensor(leaf) else leaf
        for leaf in tree.leaves(given)
    )
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    return tree.structure(given), leaves, autocast


def has_hooks(parameters: list[nn.Parameter]) -> bool:
    """Whether a gradient hook wants to see gradients as autograd hands them out."""
    return any(before or after for before, after in map(HOOKS, parameters))


def reason_against(module: nn.Module, given: Any, *, exchanges: bool) -> str:
    """Why this model cannot be captured, as far as known before a capture; empty if no reason is known. `exchanges`:
    batch norms exchange statistics between workers."""
    if any(torch.is_tensor(leaf) and not leaf.is_cuda for leaf in (*tree.leaves(given), *parameters_in(module))):
        return "not all of its inputs and parameters are on the GPU."
    for name, child in module.named_modules():
        if exchanges and isinstance(child, BatchNorm):
            return f"{name or 'the model'} exchanges statistics between workers (with --mod bn=local it does not)."
        if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or child._backward_pre_hooks:
            return f"{name or 'the model'} has hooks, which a graph would not call."
    return ""


# -- the gradients that a graph writes --------------------------------------------------------------------------------


WITHOUT = "Leave the mod out: --mod cuda_graphs cannot be used with this script."
GRAD = attrgetter("grad")


class KeptGradients:
    """The gradients that one graph writes."""

    def __init__(self, parameters: list[nn.Parameter], room: list[torch.Tensor] | None = None) -> None:
        """Call it outside the capture: the memory pool of a graph is used again by its next launch, and gradients live
        longer. `room`: that of another graph, of which only one is launched in a step."""
        self._all = parameters
        self.room = [torch.empty_like(parameter) for parameter in parameters] if room is None else room

    def capture(self, found: Sequence[torch.Tensor | None]) -> None:
        """Inside the capture: the gradients as autograd found them, None for a parameter that it did not reach."""
        reached = [(place, grad) for place, grad in enumerate(found) if grad is not None]
        self.parameters = [self._all[place] for place, _ in reached]
        self.grads = [self.room[place] for place, _ in reached]
        torch._foreach_copy_(self.grads, [grad for _, grad in reached])

    def seal(self) -> None:
        """After all captures. A reference count above the present one means that the script holds a gradient."""
        self._storages = [address_of(grad.untyped_storage()) for grad in self.grads]
        self._counts = self._count()

    def _count(self) -> Any:
        return list(map(count_uses, self._storages)), list(map(getrefcount, self.grads))

    def let_go(self) -> None:
        """Before a launch: gradients that accumulate over several backwards move to separate memory."""
        if any(map(is_, map(GRAD, self.parameters), self.grads)):
            self._give_own_memory()
        if self._count() != self._counts:
            raise ScriptError("--mod cuda_graphs: the script keeps a gradient of an earlier step.", advice=WITHOUT)

    def _give_own_memory(self) -> None:
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            if parameter.grad is grad:
                parameter.grad = grad.clone()

    def hand_out(self) -> None:
        """After a launch: sets each parameter's gradient, or adds to it, as autograd does."""
        sums: list[torch.Tensor] = []
        added: list[torch.Tensor] = []
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            held = parameter.grad
            if held is None:
                parameter.grad = grad
            else:
                sums.append(held)
                added.append(grad)
        if sums:
            torch._foreach_add_(sums, added)

    def copies(self) -> list[torch.Tensor | None]:
        """After a launch: copies for autograd, one a parameter."""
        of = {id(parameter): grad for parameter, grad in zip(self.parameters, self.grads, strict=True)}
        return [None if (grad := of.get(id(parameter))) is None else grad.clone() for parameter in self._all]
