"""A model's forward and backward as CUDA graphs: what is launched kernel by kernel is captured once and replayed as a
whole.

`GraphedCall.of` captures one kind of call: same structure, shapes, dtypes and parameters. Nothing is computed while it
captures, so that a replay follows and everything happens once: running statistics, random numbers, gradients. What the
caller gets is its own: outputs are copies, and a gradient that somebody still holds is never written over.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from paceline.errors import ScriptError
from paceline.script import tree

WITHOUT = "Leave the mod out: --mod cuda_graphs cannot be used with this script."


class GraphedCall:
    """Forward and backward of one kind of call. Its memory is its own, so one call at a time may be under way."""

    def __init__(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> None:
        """Captures. Raises what torch raises where the call cannot be captured; nothing has been computed then."""
        leaves = tree.leaves(given)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self._fixed = [*module.parameters(), *module.buffers()]
        self._addresses = [tensor.data_ptr() for tensor in self._fixed]
        self._inputs = [_static(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        taken = iter(self._inputs)
        args, kwargs = tree.replace(given, lambda leaf: next(taken) if isinstance(leaf, torch.Tensor) else leaf)
        before = _left_tensors(module)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        with _capturing(self._forward, pool):
            self._output = plain(module, *args, **kwargs)
        if _left_tensors(module) - before:
            raise ScriptError("The model leaves a tensor that has a gradient in an attribute.", advice=WITHOUT)
        self._outputs = [leaf for leaf in tree.leaves(self._output) if isinstance(leaf, torch.Tensor)]
        if any(isinstance(leaf, float) for leaf in tree.leaves(self._output)):
            raise ScriptError("The model returns a number that is not a tensor.", advice=WITHOUT)
        learning = [output for output in self._outputs if output.requires_grad]
        self._sources = [t for t in (*self._inputs, *self.parameters) if t.requires_grad]
        self._upstream = [torch.empty_like(output) for output in learning]
        with _capturing(self._backward, pool):
            found = torch.autograd.grad(learning, self._sources, self._upstream, allow_unused=True)
            self._grads = _laid_out(found, self._sources)
        self._output = tree.replace(self._output, lambda leaf: leaf.detach() if torch.is_tensor(leaf) else leaf)
        self._differentiable = [output.requires_grad for output in self._outputs]
        self._outputs = [output.detach() for output in self._outputs]
        # A count above the one of now is somebody who holds the gradient of an earlier step.
        self._storages = [grad.untyped_storage() for grad in self._grads if grad is not None]
        self._counts = self._count()
        self._last: weakref.ref[_Call] | None = None

    @property
    def is_free(self) -> bool:
        """Whether no call is between its forward and its backward."""
        last = None if self._last is None else self._last()
        return last is None or last.went_back

    def still_fits(self) -> bool:
        """Whether weights and buffers lie where they lay: a model that was moved needs another graph."""
        return [tensor.data_ptr() for tensor in self._fixed] == self._addresses

    def __call__(self, given: Any) -> Any:
        tensors = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)]
        call = _Call()
        self._last = weakref.ref(call)
        outputs = iter(_Replay.apply(self, call, *tensors, *self.parameters))
        return tree.replace(self._output, lambda leaf: next(outputs) if torch.is_tensor(leaf) else leaf)

    def forward(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for static, tensor in zip(self._inputs, tensors, strict=False):
            static.detach().copy_(tensor, non_blocking=True)
        self._forward.replay()
        return tuple(output.clone() for output in self._outputs)

    def marks(self, outputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The outputs that have no gradient."""
        return [out for out, learns in zip(outputs, self._differentiable, strict=True) if not learns]

    def backward(self, call: _Call, grads: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
        if call.went_back or self._last is None or self._last() is not call:
            raise ScriptError("A backward goes twice through the same call of a model.", advice=WITHOUT)
        call.went_back = True
        if self._count() != self._counts:
            self._let_go()
        wanted = (grad for grad, learns in zip(grads, self._differentiable, strict=True) if learns)
        for static, grad in zip(self._upstream, wanted, strict=True):
            static.copy_(grad)
        self._backward.replay()
        found = iter(self._grads)
        given = [(next(found) if tensor.requires_grad else None) for tensor in (*self._inputs, *self.parameters)]
        inputs = len(self._inputs)
        # A parameter's goes on to be its `.grad` as it is; an input's may be kept by anyone.
        return [
            None if grad is None else grad.clone() if place < inputs else grad.detach()
            for place, grad in enumerate(given)
        ]

    def _count(self) -> list[int]:
        return [torch._C._storage_Use_Count(storage._cdata) for storage in self._storages]

    def _let_go(self) -> None:
        """Gradients that are added up over several backwards get memory of their own before this one is written."""
        static = {grad.data_ptr() for grad in self._grads if grad is not None}
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.data_ptr() in static:
                parameter.grad = parameter.grad.clone()
        if self._count() != self._counts:
            raise ScriptError("The script keeps a gradient of an earlier step.", advice=WITHOUT)


class _Call:
    """One call under way. Gone with the outputs that hold it."""

    went_back = False


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graph: GraphedCall, call: _Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.graph, ctx.call = graph, call
        outputs = graph.forward(tensors)
        ctx.mark_non_differentiable(*graph.marks(outputs))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *ctx.graph.backward(ctx.call, grads)


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # a cast that is kept from before would not be captured
    try:
        # Of this thread only: loaders pin memory in threads of their own.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)


def _static(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone(memory_format=torch.preserve_format).requires_grad_(leaf.requires_grad)


def _laid_out(grads: Any, sources: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Each gradient in memory of its own, laid out as its tensor: else autograd copies it at every step."""
    seen: set[int] = set()
    kept: list[torch.Tensor | None] = []
    for grad, source in zip(grads, sources, strict=True):
        if grad is not None and (grad.stride() != source.stride() or grad.untyped_storage().data_ptr() in seen):
            grad = torch.empty_like(source).copy_(grad)
        if grad is not None:
            seen.add(grad.untyped_storage().data_ptr())
        kept.append(grad)
    return kept


def _left_tensors(module: nn.Module) -> set[tuple[int, str]]:
    """Attributes that hold a tensor with a graph."""
    return {
        (id(owner), name)
        for owner in module.modules()
        for name, value in vars(owner).items()
        if isinstance(value, torch.Tensor) and value.grad_fn is not None
    }
