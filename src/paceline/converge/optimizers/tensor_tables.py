"""Tables of tensors, for kernels that process many tensors at once.

A kernel finds a tensor by its index: its address, length and treatment. Tensors are cut into chunks of one size, and
each program of a kernel processes one chunk. The tables are on the device and are rebuilt only when a tensor has moved.
Gradients, which torch may allocate anew for every step, have a small table of their own.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from paceline.torch_private import is_capturing

DEVICES = ("cuda",)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 4096  # elements per chunk
ADAPTED, DECAYED = 1, 2  # bits of a tensor's treatment


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def can_fuse(parameter: Any) -> bool:
    """Whether the fused kernels support this parameter."""
    if parameter.device.type not in DEVICES or parameter.dtype not in DTYPES or not has_triton():
        return False
    return _is_without_gaps(_own(parameter))


class Table:
    """The tensors of one batch, in its order. `rows` is the int64 table that kernels read, with one row for each of:
    length, index of the first chunk, treatment; address of the gradient, of the step count, of the parameter, of each
    moment."""

    def __init__(self, batch: TensorBatch, moments: tuple[str, ...]) -> None:
        parameters = batch.parameters
        self.device, self.block, self.tensors = parameters[0].device, BLOCK, len(parameters)
        self.mesh, self.sharded = batch.mesh, batch.sharded
        self.dtypes = tuple(t[0].dtype for t in (parameters, batch.grads, batch.state(moments[0])))
        self._strides = [parameter.stride() for parameter in parameters]
        lengths = torch.tensor([parameter.numel() for parameter in parameters], device="cpu")
        # A tensor without elements has one chunk too: its program counts the step.
        chunks = ((lengths + self.block - 1) // self.block).clamp_min(1)
        self.chunks = int(chunks.sum())
        rows = [
            lengths.tolist(),
            (chunks.cumsum(0) - chunks).tolist(),
            batch.treatment,
            [0] * self.tensors,
            _addresses(batch.state("step")) if "step" in batch.states[0] else [0] * self.tensors,
            *(_addresses(tensors) for tensors in (parameters, *(batch.state(name) for name in moments))),
        ]
        self.rows = torch.tensor(rows, dtype=torch.int64, device="cpu").to(self.device)
        of_chunks = torch.arange(self.tensors, dtype=torch.int32, device="cpu").repeat_interleave(chunks)
        self.tensor_of_chunk = of_chunks.to(self.device)
        # Two sums of squares, per chunk and then per tensor. The program that completes a tensor, found by counting
        # arrivals, adds its chunks up in a fixed order, so that a run is reproducible to the last digit.
        self.partial = torch.empty((2, self.chunks), dtype=torch.float32, device=self.device)
        self.sums = torch.empty((2, self.tensors), dtype=torch.float32, device=self.device)
        self.arrived = torch.zeros(self.tensors, dtype=torch.int32, device=self.device)
        self.ready: dict[str, Callable[..., None]] = {}  # compiled kernels
        self._grads = self.rows[3]
        self._cells = self._grads.unbind()
        self._told: list[int] = []

    def take(self, grads: list[Tensor], addresses: list[int] | None) -> list[Tensor]:
        """Passes the addresses of this step's gradients to the kernels. Returns the tensors that the kernels will read,
        which must stay alive until the launch. Without `addresses`, gradients whose layout differs from their
        parameter's are copied."""
        if addresses is None:
            grads = [_with_strides(grad, strides) for grad, strides in zip(grads, self._strides, strict=True)]
            addresses = _addresses(grads)
        if is_capturing():
            # As kernel arguments: a replay would read host memory again.
            torch._foreach_zero_(self._cells)
            torch._foreach_add_(self._cells, addresses)
            self._told = []
        elif addresses != self._told:
            fresh = torch.tensor(addresses, dtype=torch.int64, pin_memory=self.device.type == "cuda", device="cpu")
            self._grads.copy_(fresh, non_blocking=True)
            self._told = addresses
        return grads


class Prepared:
    """The tables of a parameter group, and the conditions under which they stay valid. Checked at every step for every
    tensor while the device waits, so with functions that loop in C, and without repeated checks."""

    def __init__(
        self,
        group: dict[str, Any],
        states: list[dict[str, Any]],
        names: tuple[str, ...],
        tables: list[tuple[Table, list[int]]],
    ) -> None:
        self.tables = tables  # each with the indices of its tensors among those that have gradients
        self._treated = _treated(group)
        self._group = list(group["params"])
        self._absent = [parameter.grad is None for parameter in self._group]
        self._parameters = [parameter for parameter in self._group if parameter.grad is not None]
        self._sharded = any(table.mesh is not None for table, _ in tables)
        parameters, grads = self._local_parts(self._parameters), self._local_parts([p.grad for p in self._parameters])
        self._addresses, self._lengths = _addresses(parameters), list(map(Tensor.numel, parameters))
        self._strides, self._dtypes = list(map(Tensor.stride, parameters)), list(map(_dtype, grads))
        self._alike = [self._strides]  # gradient strides that count as the parameters' layout
        self._states = states
        self._kept = [(name, [state[name] for state in states]) for name in names]
        # Code that moves a moment's memory under the same tensor moves all moments: checking one is enough.
        self._moment = self._local_parts(self._kept[0][1])
        self._moment_at = _addresses(self._moment)

    def holds(self, group: dict[str, Any], grads: list[Any]) -> tuple[list[Tensor], list[int] | None] | None:
        """The gradients and addresses for the tables, or None if the tables are no longer valid. `grads` are those of
        the whole group. The caller has checked that the states are the same dictionaries."""
        if _treated(group) != self._treated or [grad is None for grad in grads] != self._absent:
            return None
        if not _are_same_objects(group["params"], self._group):
            return None
        if len(self._parameters) < len(grads):
            grads = [grad for grad in grads if grad is not None]
        parameters, grads = self._local_parts(self._parameters), self._local_parts(grads)
        try:
            strides, addresses = list(map(Tensor.stride, grads)), _addresses(grads)
        except RuntimeError:  # a sparse gradient has no address: `_batches` raises the error for it
            return None
        alike = strides in self._alike
        if (
            list(map(_dtype, grads)) == self._dtypes
            and _addresses(parameters) == self._addresses
            and list(map(Tensor.numel, parameters)) == self._lengths
            and all(all(map(is_, map(dict.get, self._states, repeat(name)), kept)) for name, kept in self._kept)
            and _addresses(self._moment) == self._moment_at
            # Gradients usually have their parameter's layout: if not, check whether the parameters have changed.
            and (alike or list(map(Tensor.stride, parameters)) == self._strides)
        ):
            if not alike and (alike := all(map(_has_strides, grads, self._strides))):
                self._alike[1:] = [strides]  # skips the detailed check in the next step
            return grads, addresses if alike else None
        return None

    def _local_parts(self, tensors: list[Any]) -> list[Tensor]:
        return [_own(tensor) for tensor in tensors] if self._sharded else tensors


class States:
    """A snapshot of an optimizer's states: the same dictionaries of the same parameters. Compared by identity and in
    order, which avoids hashing tensors."""

    def __init__(self, state: dict[Tensor, dict[str, Any]]) -> None:
        self._parameters, self._states = list(state), list(state.values())

    def hold(self, state: dict[Tensor, dict[str, Any]]) -> bool:
        return _are_same_objects(state, self._parameters) and _are_same_objects(state.values(), self._states)


_dtype = attrgetter("dtype")


def _treated(group: dict[str, Any]) -> tuple[Any, ...]:
    return group["adapt"], group["fused"]


def _are_same_objects(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether both hold the same objects: `==` of tensors would compare numbers."""
    return len(some) == len(others) and all(map(is_, some, others))


def _addresses(tensors: list[Tensor]) -> list[int]:
    return list(map(Tensor.data_ptr, tensors))


def _own(tensor: Any) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _has_strides(tensor: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the tensor has these strides. The stride of a dimension with one element does not matter."""
    return all(a == b for a, b, size in zip(tensor.stride(), strides, tensor.shape, strict=True) if size > 1)


def _with_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The tensor with these strides: a copy if it has others."""
    if _has_strides(tensor, strides):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_without_gaps(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory, each once, in any order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True


# -- batches of tensors -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class TensorBatch:
    """Tensors of one group that step together: of the same device, dtype and sharding."""

    numbers: list[int] = field(default_factory=list)  # indices among the group's parameters that have gradients
    parameters: list[Tensor] = field(default_factory=list)  # this worker's shard of each
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)
    treatment: list[int] = field(default_factory=list)  # bits: ADAPTED, DECAYED
    mesh: Any = None  # of DTensors; `sharded` lists its dimensions over which the tensors are sharded
    sharded: tuple[int, ...] = ()

    def state(self, name: str) -> list[Tensor]:
        return [local(state[name]) for state in self.states]

    def treated(self, bit: int, tensors: list[Tensor]) -> list[Tensor]:
        return [tensor for tensor, bits in zip(tensors, self.treatment, strict=True) if bits & bit]


def local(tensor: Any) -> Tensor:
    """This worker's shard of a tensor, as real numbers."""
    own: Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    return torch.view_as_real(own) if own.is_complex() else own


def is_dtensor(tensor: Any) -> bool:
    # Importing DTensor takes long, and code that has a DTensor has imported it.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
