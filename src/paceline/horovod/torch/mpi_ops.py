"""Horovod's operations on torch tensors, in the module that scripts know: `from horovod.torch.mpi_ops import …`.

The asynchronous ones (`…_async`) return a handle for `synchronize`; those whose names end in `_` work in place; the
others have gradients. Every rank of the process set submits the same operations, by name, in any order. Tensors must be
contiguous, and must not be changed before `synchronize` has returned. A failure, also on another rank, raises
HorovodInternalError in `synchronize`; a mistake that this rank can see by itself raises ValueError at once.

The gradients are as Horovod defines them: that of allreduce is the same reduction of the gradients; those of allgather
and broadcast are averaged over the ranks, of which each takes what belongs to its own input.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.horovod.common import basics
from paceline.horovod.common.basics import *  # noqa: F403
from paceline.horovod.common.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from paceline.horovod.common.util import num_rank_is_power_2, which_op
from paceline.horovod.common.util import which_op as handle_average_backwards_compatibility
from paceline.horovod.engine.controller import current, required
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
from paceline.horovod.exceptions import HorovodInternalError
from paceline.horovod.torch.compression import Compression

__all__ = [
    *basics.__all__,
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "init",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "sparse_allreduce_async",
    "synchronize",
]

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT

REDUCIBLE = {
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
MOVABLE = {*REDUCIBLE, torch.bool}

_numbers = itertools.count()
_operations: dict[int, tuple[Operation, Callable[[Any], Any] | None]] = {}  # with what makes the result of it


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connects this process with the other ranks; every rank calls it. See `basics.init`."""
    if not basics.is_initialized():
        _operations.clear()  # handles of an earlier time are not valid
    basics.init(comm, process_sets)


def shutdown() -> None:
    """Ends Horovod on this rank, and with it on all others. `init` may be called again."""
    basics.shutdown()
    _operations.clear()


# -- handles: numbers, as in Horovod, that `poll` and `synchronize` take ---------------------------------------------


def _submit(operation: Operation, finish: Callable[[Any], Any] | None = None) -> int:
    """Hands an operation to the background thread, and returns its handle. `finish` is applied to the result."""
    required().submit(operation)
    handle = next(_numbers)
    _operations[handle] = operation, finish
    return handle


def poll(handle: int) -> bool:
    """Whether the operation has completed, so that `synchronize` will not wait."""
    if handle not in _operations:
        raise ValueError(f"Handle {handle} was not created or has been cleared.")
    if _operations[handle][0].is_done:
        return True
    hurry()
    return False


def hurry() -> None:
    """A thread waits: what is submitted is sent at once."""
    if (controller := current()) is not None:
        controller.hurry()


def synchronize(handle: int) -> Any:
    """Waits for the operation and returns its result. HorovodInternalError if it has failed. None if there is no such
    handle, or if it was synchronized before."""
    found = _operations.pop(handle, None)
    if found is None:
        return None
    operation, finish = found
    if operation.lock.locked():
        hurry()
    result = operation.wait()
    return result if finish is None else finish(result)


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
    return _submit(operation, finish)


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
    finish: Callable[[Any], Any],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
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
    how = average, name, op, prescale_factor, postscale_factor, process_set
    return _allreduce([tensor], [_empty_like(tensor)], _only, *how)


def allreduce_async_(tensor: torch.Tensor, *how: Any, **named: Any) -> int:
    """Like allreduce_async, in place."""
    return _allreduce([tensor], [tensor], _only, *how, **named)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], *how: Any, **named: Any) -> int:
    """Like allreduce_async, of several tensors at once: none before all of them are submitted on all ranks."""
    return _allreduce(list(tensors), [_empty_like(tensor) for tensor in tensors], tuple, *how, **named)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], *how: Any, **named: Any) -> int:
    """Like grouped_allreduce_async, in place."""
    return _allreduce(list(tensors), list(tensors), tuple, *how, **named)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Reduces a sparse tensor by Sum or Average: gathers indices and values of all ranks. Returns a function that waits
    and returns the sparse result."""
    own = tensor.detach().coalesce()
    # Allgather concatenates rows, and each index is a column.
    first = allgather_async(own.indices().t().contiguous(), name and f"{name}.indices", process_set)
    second = allgather_async(own.values().contiguous(), name and f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        every_index, every_value = synchronize(first), synchronize(second)
        if op == AVERAGE:
            every_value = every_value / process_set.size()
        return torch.sparse_coo_tensor(every_index.t(), every_value, own.shape, check_invariants=False)

    return handle


# -- allgather -----------------------------------------------------------------------------------------------------


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Concatenates the tensors of all ranks along the first dimension, whose size may differ between ranks."""
    return _allgather([tensor], name, process_set, _only)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Gathers several tensors at once."""
    return _allgather(list(tensors), name, process_set, tuple)


def _allgather(
    tensors: list[torch.Tensor], name: str | None, process_set: ProcessSet, finish: Callable[[Any], Any]
) -> int:
    _check(tensors, MOVABLE)
    how = How(process_set=_set_number(process_set, ALLGATHER))
    return _start(ALLGATHER, tensors, None, name, how, finish)


# -- broadcast -----------------------------------------------------------------------------------------------------


def broadcast_async(tensor: torch.Tensor, *how: Any, **named: Any) -> int:
    """Like broadcast_async_, into a new tensor."""
    return _broadcast(tensor, _empty_like(tensor), *how, **named)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copies the root's tensor to all ranks. `root_rank` is a rank among all ranks, also in a process set."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def _broadcast(
    tensor: torch.Tensor,
    output: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    _check([tensor], MOVABLE)
    how = How(root=root_rank, process_set=_set_number(process_set, BROADCAST))
    return _start(BROADCAST, [tensor], [output], name, how, _only)


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


def reducescatter_async(tensor: torch.Tensor, *how: Any, **named: Any) -> int:
    """Reduces a tensor over the ranks, and gives each rank its part of the first dimension; the first ranks get a row
    more if the rows cannot be split evenly. The arguments are those of grouped_reducescatter_async."""
    return _reducescatter([tensor], _only, *how, **named)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Like reducescatter_async, of several tensors at once."""
    return _reducescatter(list(tensors), tuple, name, op, process_set, prescale_factor, postscale_factor)


def _reducescatter(
    tensors: list[torch.Tensor],
    finish: Callable[[Any], Any],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    _check(tensors, REDUCIBLE)
    how = How(op, -1, _set_number(process_set, REDUCESCATTER), prescale_factor, postscale_factor)
    return _start(REDUCESCATTER, tensors, None, name, how, finish)


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


# -- with gradients -------------------------------------------------------------------------------------------------


class HorovodGroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return synchronize(grouped_allreduce_async(tensors, None, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *HorovodGroupedAllreduce.apply(None, ctx.how, *(grad.contiguous() for grad in grads))


class HorovodGroupedAllgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows, ctx.process_set = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors], process_set
        return synchronize(grouped_allgather_async(tensors, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return None, None, *_own_rows(grads, ctx.rows, ctx.process_set)


def _own_rows(grads: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet) -> list[torch.Tensor]:
    """This rank's rows of the gradients' averages."""
    how = Average, 1.0, 1.0, process_set
    averages = HorovodGroupedAllreduce.apply(None, how, *(grad.contiguous() for grad in grads))
    counts = torch.tensor([list(rows)], device="cpu")
    every = synchronize(allgather_async(counts, None, process_set))
    rank = process_set.rank() or 0
    starts = every[:rank].sum(0).tolist()
    return [whole.narrow(0, at, count) for whole, at, count in zip(averages, starts, rows, strict=True)]


class HorovodBroadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return synchronize(broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (average,) = HorovodGroupedAllreduce.apply(None, (Average, 1.0, 1.0, ctx.process_set), grads[0].contiguous())
        return (average if basics.rank() == ctx.root else average * 0), None, None, None


class HorovodAlltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set, ctx.rows = received, process_set, tensor.shape[0]
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        back, _ = HorovodAlltoall.apply(grads[0].contiguous(), ctx.received.cpu(), None, ctx.process_set)
        if back.shape[0] < ctx.rows:  # rows that were sent to no rank
            back = torch.cat([back, back.new_zeros((ctx.rows - back.shape[0], *back.shape[1:]))])
        return back, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, how: tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.how = how
        return synchronize(grouped_reducescatter_async(tensors, name, *how))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scaled = [(grad * _factor(ctx.how)).contiguous() for grad in grads]
        return None, None, *HorovodGroupedAllgather.apply(None, ctx.how[1], *scaled)


def _factor(how: tuple[Any, ...]) -> float:
    """Of the gradient of a reducescatter, which Horovod defines as if the op were Average."""
    op, process_set, prescale, postscale = how
    return float((process_set.size() if op == SUM else 1) * prescale * postscale)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over the ranks; its shape and dtype are the same on all. `op` is Average if not given."""
    how = which_op(op, average), prescale_factor, postscale_factor, process_set
    return _compressed(HorovodGroupedAllreduce, [tensor], compression, name, how)[0]


def allreduce_(tensor: torch.Tensor, *how: Any, **named: Any) -> torch.Tensor:
    """Like allreduce, in place and without gradients. The arguments are those of allreduce_async."""
    result: torch.Tensor = synchronize(allreduce_async_(tensor, *how, **named))
    return result


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces several tensors at once."""
    how = which_op(op, average), prescale_factor, postscale_factor, process_set
    return _compressed(HorovodGroupedAllreduce, tensors, compression, name, how)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], *how: Any, **named: Any) -> Any:
    """Like grouped_allreduce, in place and without gradients. The arguments are those of grouped_allreduce_async."""
    return synchronize(grouped_allreduce_async_(tensors, *how, **named))


def _compressed(
    function: Any, tensors: Sequence[torch.Tensor], compression: Any, name: str | None, how: tuple[Any, ...]
) -> list[torch.Tensor]:
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    results = function.apply(name, how, *small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts, strict=True)]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first dimension, whose size may differ between ranks."""
    result: torch.Tensor = HorovodGroupedAllgather.apply(name, process_set, tensor)[0]
    return result


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gathers several tensors at once."""
    return HorovodGroupedAllgather.apply(name, process_set, *tensors)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor, on all ranks."""
    result: torch.Tensor = HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(tensor: torch.Tensor, *how: Any, **named: Any) -> torch.Tensor:
    """Like broadcast, in place and without gradients."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, *how, **named))
    return result


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends `splits[r]` rows to rank r, and concatenates the rows that come from all ranks. With `splits`, also returns
    how many rows came from each rank."""
    output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def reducescatter(tensor: torch.Tensor, *how: Any, **named: Any) -> torch.Tensor:
    """Reduces a tensor over the ranks, and gives each rank its part of the first dimension. The arguments are those of
    grouped_reducescatter."""
    return grouped_reducescatter([tensor], *how, **named)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Like reducescatter, of several tensors at once."""
    how = op, process_set, prescale_factor, postscale_factor
    return _compressed(HorovodGroupedReducescatter, tensors, compression, name, how)
