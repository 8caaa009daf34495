"""Tables of tensors, for kernels that go over many of them at once.

A kernel finds a tensor by its number: where its memory lies, how long it is, how it is treated. Tensors are cut into
chunks of one size, and each program of a kernel takes one. The tables lie on the device and are made again only when a
tensor has moved; gradients, which torch may allocate anew for every step, have a small table of their own.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paceline.converge.layerwise import Batch

DEVICES = ("cuda",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 4096  # elements of a chunk
ADAPTED, DECAYED = 1, 2  # bits that say how a tensor is treated


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def can_fuse(parameter: Any) -> bool:
    """Whether kernels can go over this parameter's memory."""
    if parameter.device.type not in DEVICES or parameter.dtype not in DTYPES or not has_triton():
        return False
    return _is_without_gaps(_own(parameter))


def is_capturing() -> bool:
    """Whether what is launched now becomes a part of a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Table:
    """The tensors of one batch, in its order. `rows` is what kernels read, in int64; a row for each of: address of the
    parameter, of each moment, of the step count; length; number of the first chunk; treatment."""

    def __init__(self, batch: Batch, moments: tuple[str, ...]) -> None:
        parameters = batch.parameters
        self.device, self.block, self.tensors = parameters[0].device, BLOCK, len(parameters)
        self.mesh, self.sharded = batch.mesh, batch.sharded
        self.dtypes = tuple(t[0].dtype for t in (parameters, batch.grads, batch.state(moments[0])))
        self._strides = [parameter.stride() for parameter in parameters]
        lengths = torch.tensor([parameter.numel() for parameter in parameters])
        chunks = (lengths + self.block - 1) // self.block
        self.chunks = int(chunks.sum())
        rows = [
            *(_addresses(tensors) for tensors in (parameters, *(batch.state(name) for name in moments))),
            _addresses(batch.state("step")) if "step" in batch.states[0] else [0] * self.tensors,
            lengths.tolist(),
            (chunks.cumsum(0) - chunks).tolist(),
            batch.treatment,
        ]
        self.rows = torch.tensor(rows, dtype=torch.int64).to(self.device)
        of_chunks = torch.arange(self.tensors, dtype=torch.int32).repeat_interleave(chunks)
        self.tensor_of_chunk = of_chunks.to(self.device)
        # Two sums of squares: of each chunk, then of each tensor. Added up in a fixed order, so that a run can be
        # made again to the last digit.
        self.partial = torch.empty((2, max(1, self.chunks)), dtype=torch.float32, device=self.device)
        self.sums = torch.empty((2, self.tensors), dtype=torch.float32, device=self.device)
        self.grads = torch.zeros(self.tensors, dtype=torch.int64, device=self.device)
        self._cells = self.grads.unbind()
        self._told: list[int] = []

    def take(self, grads: list[Tensor]) -> list[Tensor]:
        """Tells the kernels where this step's gradients lie. Gives those that they will read: they have to live until
        the launch, and are copies where a gradient is not laid out as its parameter is."""
        if list(map(Tensor.stride, grads)) != self._strides:
            grads = [_laid_out(grad, strides) for grad, strides in zip(grads, self._strides, strict=True)]
        addresses = _addresses(grads)
        if is_capturing():
            # As arguments of kernels: memory of the host would be read again at each replay.
            torch._foreach_zero_(self._cells)
            torch._foreach_add_(self._cells, addresses)
            self._told = []
        elif addresses != self._told:
            fresh = torch.tensor(addresses, dtype=torch.int64, pin_memory=self.device.type == "cuda")
            self.grads.copy_(fresh, non_blocking=True)
            self._told = addresses
        return grads


class Prepared:
    """The tables of a parameter group, and what must not have changed for them to hold. Asked at every step, of every
    tensor, while the device waits: so by functions that loop in C."""

    def __init__(
        self,
        adapt: bool | None,
        parameters: list[Tensor],
        grads: list[Tensor],
        states: list[dict[str, Any]],
        tables: list[tuple[Table, list[int]]],
    ) -> None:
        self.tables = tables  # each with the numbers of its tensors
        self.sharded = any(table.mesh is not None for table, _ in tables)
        self._adapt = adapt
        self._lengths, self._dtypes = [p.numel() for p in parameters], [g.dtype for g in grads]
        self._states = states
        self._kept = _values(states)
        self._kept_here = [_own(tensor) for tensor in self._kept]
        self._addresses = _addresses([*parameters, *self._kept_here])

    def holds(
        self, adapt: bool | None, parameters: list[Tensor], grads: list[Tensor], states: list[dict[str, Any]]
    ) -> bool:
        return (
            self._adapt is adapt
            and len(states) == len(self._states)
            and all(map(is_, states, self._states))
            and len(kept := _values(states)) == len(self._kept)
            and all(map(is_, kept, self._kept))
            and _addresses([*parameters, *self._kept_here]) == self._addresses
            and list(map(Tensor.numel, parameters)) == self._lengths
            and list(map(_dtype, grads)) == self._dtypes
            and set(map(_layout, grads)) == {torch.strided}
        )


_dtype, _layout = attrgetter("dtype"), attrgetter("layout")


def _values(states: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, states)))


def _addresses(tensors: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def _own(tensor: Any) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _laid_out(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """With these strides in memory: a copy where it has others. Those of a dimension of one element mean nothing."""
    if all(a == b for a, b, size in zip(tensor.stride(), strides, tensor.shape, strict=True) if size > 1):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_without_gaps(tensor: Tensor) -> bool:
    """Whether its elements fill one stretch of memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True
