"""Horovod's asynchronous operations on torch tensors. Each returns a handle for `synchronize`.

Every rank of the process set submits the same operations, by name, in any order. Tensors must be contiguous, and must
not be changed before `synchronize` has returned. A failure, also on another rank, raises HorovodInternalError in
`synchronize`; a mistake that this rank can see by itself raises ValueError at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.process_sets import ProcessSet, global_process_set
from paceline.horovod.common.util import num_rank_is_power_2, which_op
from paceline.horovod.engine.controller import required
from paceline.horovod.engine.messages import (
    ADASUM,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    SUM,
)
from paceline.horovod.engine.operation import How, Operation
from paceline.horovod.torch.handles import submit, synchronize

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT

REDUCIBLE = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
MOVABLE = {*REDUCIBLE, torch.bool}


def _check(tensors: Sequence[torch.Tensor], dtypes: set[torch.dtype]) -> None:
    for tensor in tensors:
        if tensor.dtype not in dtypes or tensor.is_sparse:
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        if not tensor.is_contiguous():
            raise ValueError("Tensor is required to be contiguous.")


def _set_number(process_set: ProcessSet, kind: str) -> int:
    """ValueError if the set is not registered, or if this process is not in it."""
    number = process_set.process_set_id
    if number == 0:
        return 0
    sets = required().sets
    if number is None or number not in sets.ranks:
        raise ValueError(f"{kind.capitalize()}: {process_set} does not exist or has not been registered.")
    if not sets.has_member(number):
        raise ValueError(f"{kind.capitalize()}: {process_set} does not include this process.")
    return number


def _start(
    kind: str,
    tensors: list[torch.Tensor],
    outputs: list[torch.Tensor] | None,
    name: str | None,
    how: How,
    finish: Callable[[Any], Any],
) -> int:
    full = f"{kind}.{name}" if name else required().make_name(kind)
    operation = Operation(full, kind, tensors, outputs, how, bool(name))
    if tensors and tensors[0].is_cuda:
        operation.event = torch.cuda.current_stream(tensors[0].device).record_event()
    return submit(operation, finish)


def _only(result: Any) -> Any:
    return result[0]


def _none(result: Any) -> None:
    return None


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, requires_grad=False)


# -- allreduce -----------------------------------------------------------------------------------------------------


def _allreduce(
    tensors: list[torch.Tensor],
    outputs: list[torch.Tensor],
    average: bool | None,
    name: str | None,
    op: int | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
) -> int:
    op = which_op(op, average)
    if op == ADASUM:
        _check_adasum(process_set)
    _check(tensors, REDUCIBLE)
    how = How(op, -1, _set_number(process_set, ALLREDUCE), prescale_factor, postscale_factor)
    return _start(ALLREDUCE, tensors, outputs, name, how, finish)


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    if not num_rank_is_power_2(basics.size()):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces a tensor over the ranks; its shape and dtype are the same on all. `op` is Average if not given."""
    return _allreduce(
        [tensor], [_empty_like(tensor)], average, name, op, prescale_factor, postscale_factor, process_set, _only
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like allreduce_async, in place."""
    return _allreduce([tensor], [tensor], average, name, op, prescale_factor, postscale_factor, process_set, _only)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduces several tensors at once: none before all of them are submitted on all ranks."""
    tensors = list(tensors)
    outputs = [_empty_like(tensor) for tensor in tensors]
    return _allreduce(tensors, outputs, average, name, op, prescale_factor, postscale_factor, process_set, tuple)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Like grouped_allreduce_async, in place."""
    tensors = list(tensors)
    return _allreduce(tensors, tensors, average, name, op, prescale_factor, postscale_factor, process_set, tuple)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Reduces a sparse tensor by Sum or Average: gathers indices and values of all ranks. Returns a function that waits
    and returns the sparse result."""
    own = tensor.detach()
    # Allgather concatenates rows, and each index is a column.
    if own.is_coalesced():
        indices, values = own.indices(), own.values()
    else:
        own = own.coalesce()
        indices, values = own.indices(), own.values()
    first = allgather_async(indices.t().contiguous(), name and f"{name}.indices", process_set)
    second = allgather_async(values.contiguous(), name and f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        every_index, every_value = synchronize(first), synchronize(second)
        if op == AVERAGE:
            every_value = every_value / process_set.size()
        return torch.sparse_coo_tensor(every_index.t(), every_value, own.shape, check_invariants=False)

    return handle


# -- allgather -----------------------------------------------------------------------------------------------------


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Concatenates the tensors of all ranks along the first dimension, whose size may differ between ranks."""
    _check([tensor], MOVABLE)
    how = How(process_set=_set_number(process_set, ALLGATHER))
    return _start(ALLGATHER, [tensor], None, name, how, _only)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Gathers several tensors at once."""
    tensors = list(tensors)
    _check(tensors, MOVABLE)
    how = How(process_set=_set_number(process_set, ALLGATHER))
    return _start(ALLGATHER, tensors, None, name, how, tuple)


# -- broadcast -----------------------------------------------------------------------------------------------------


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copies the root's tensor to all ranks. `root_rank` is a rank among all ranks, also in a process set."""
    _check([tensor], MOVABLE)
    how = How(root=root_rank, process_set=_set_number(process_set, BROADCAST))
    return _start(BROADCAST, [tensor], [_empty_like(tensor)], name, how, _only)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Like broadcast_async, in place."""
    _check([tensor], MOVABLE)
    how = How(root=root_rank, process_set=_set_number(process_set, BROADCAST))
    return _start(BROADCAST, [tensor], [tensor], name, how, _only)


# -- alltoall ------------------------------------------------------------------------------------------------------


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Sends `splits[r]` rows to rank r, and concatenates the rows that come from all ranks. Without `splits` every rank
    gets equally many. The result is the tensor and the numbers of received rows."""
    _check([tensor], MOVABLE)
    like = splits if isinstance(splits, torch.Tensor) else torch.empty(0, dtype=torch.int32, device="cpu")
    if isinstance(splits, torch.Tensor) and splits.dtype != torch.int32:
        raise ValueError("alltoall expects splits to contain 32-bit integer elements.")
    world = process_set.size()
    rows = [] if splits is None else [int(count) for count in splits]
    first = tensor.shape[0] if tensor.dim() else 0
    if (world is not None and splits is None) or not rows:
        if first % (world or 1):
            raise ValueError(
                f"Splits not provided, but the first dimension {first} is not an even multiple of {world} ranks."
            )
        rows = [first // (world or 1)] * (world or 1)
    elif len(rows) != world:
        raise ValueError(f"Number of entries in splits ({len(rows)}) does not equal the number of ranks ({world}).")
    if sum(rows) > first or min(rows) < 0:
        raise ValueError(f"Sum of splits entries {rows} is greater than the first dimension {first} of the tensor.")
    given = tensor[: sum(rows)] if tensor.dim() else tensor

    def finish(result: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = result
        return output, torch.tensor(received, dtype=torch.int32, device=like.device)

    how = How(process_set=_set_number(process_set, ALLTOALL), splits=tuple(rows))
    return _start(ALLTOALL, [given], None, name, how, finish)


# -- reducescatter -------------------------------------------------------------------------------------------------


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduces a tensor over the ranks, and gives each rank its part of the first dimension; the first ranks get a row
    more if the rows cannot be split evenly."""
    _check([tensor], REDUCIBLE)
    how = How(op, -1, _set_number(process_set, REDUCESCATTER), prescale_factor, postscale_factor)
    return _start(REDUCESCATTER, [tensor], None, name, how, _only)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like reducescatter_async, of several tensors at once."""
    tensors = list(tensors)
    _check(tensors, REDUCIBLE)
    how = How(op, -1, _set_number(process_set, REDUCESCATTER), prescale_factor, postscale_factor)
    return _start(REDUCESCATTER, tensors, None, name, how, tuple)


# -- join and barrier ----------------------------------------------------------------------------------------------


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all ranks have said so. Until then this rank takes part in
    allreduces with zeros, on the GPU `device` (-1: in host memory). Returns the rank that joined last."""
    controller = required()
    operation = Operation("join", "join", [])
    controller.join(operation, device)
    return int(operation.wait())


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the set has called it."""
    synchronize(_start(BARRIER, [], None, None, How(process_set=_set_number(process_set, BARRIER)), _none))
