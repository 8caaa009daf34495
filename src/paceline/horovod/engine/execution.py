"""Carries out operations on which all ranks have agreed: fuses what is alike, moves it, and hands out the results.

Which operations come together follows from the response alone, so every rank fuses the same ones. A rank that has
joined takes part in allreduces with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from paceline.horovod.engine.exchange import Exchange, ProcessSets
from paceline.horovod.engine.messages import (
    ADASUM,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BROADCAST,
    REDUCESCATTER,
    Agreed,
    Request,
)
from paceline.horovod.engine.operation import Operation
from paceline.horovod.engine.timeline import Timeline

Marks = Callable[[str], None]  # told which activity begins, for the timeline


class Known:
    """An agreed operation, with what follows from it alone. Those in the response cache are kept."""

    __slots__ = ("agreed", "alike", "bytes", "key", "request")

    def __init__(self, agreed: Agreed) -> None:
        self.agreed, self.request = agreed, agreed.request
        self.key = agreed.request.key
        self.alike = _alike(agreed.request)  # operations with the same value can be fused; None: with no other
        if agreed.request.kind == ALLGATHER:
            self.bytes = _gathered_bytes(agreed)
        else:
            self.bytes = sum(torch.Size(shape).numel() * dtype_of(d).itemsize for d, shape in agreed.request.parts)


class Job(NamedTuple):
    """An operation to carry out. Without `own` this rank has joined, and has submitted nothing."""

    known: Known
    own: Operation | None


def dtype_of(name: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, name)
    return found


def fuse(jobs: Sequence[Job], threshold: int) -> list[list[Job]]:
    """Jobs that may share a buffer, together, up to `threshold` bytes each; in the order of their first jobs."""
    batches: list[list[Job]] = []
    open_batches: dict[Any, list[Job]] = {}
    filled: dict[Any, int] = {}
    for job in jobs:
        known = job.known
        if known.alike is None or threshold <= 0:
            batches.append([job])
            continue
        total = filled.get(known.alike, threshold + 1) + known.bytes
        if total > threshold:
            total = known.bytes
            open_batches[known.alike] = []
            batches.append(open_batches[known.alike])
        open_batches[known.alike].append(job)
        filled[known.alike] = total
    return batches


_keys: dict[tuple[Any, ...], int] = {}


def _alike(request: Request) -> int | None:
    if request.kind not in (ALLREDUCE, ALLGATHER, BROADCAST, REDUCESCATTER):
        return None
    dtype = request.parts[0][0] if request.parts else ""
    if any(other != dtype for other, _ in request.parts):
        return None
    key = (
        *(request.kind, dtype, request.device, request.process_set),
        *(request.op, request.root, request.prescale, request.postscale),
    )
    return _keys.setdefault(key, len(_keys))  # a number is hashed faster than what it stands for


def _gathered_bytes(agreed: Agreed) -> int:
    total = 0
    for at, (dtype, shape) in enumerate(agreed.request.parts):
        row = torch.Size(shape[1:]).numel() * dtype_of(dtype).itemsize
        total += row * sum(sizes[at] for sizes in agreed.sizes)
    return total


class Executor:
    """Carries out batches of jobs. Used by the background thread only."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def run(self, batch: list[Job], exchange: Exchange, ranks: Sequence[int], mark: Marks) -> list[Any]:
        """The result of each job: a list of tensors. `ranks` are those of the process set."""
        request = batch[0].known.request
        dtypes = {dtype for dtype, _ in request.parts}
        if len(dtypes) > 1:  # a group of several dtypes is one job, and is not fused with others
            return [self._run_mixed(batch[0], exchange, ranks, mark)]
        inputs = [_inputs(job) for job in batch]
        if request.device != "cpu":
            inputs = _on_one_device(inputs)
        outputs = [job.own.outputs if job.own is not None else None for job in batch]
        if request.kind == ALLREDUCE:
            return self._allreduce(request, inputs, outputs, exchange, mark)
        if request.kind == ALLGATHER:
            return self._allgather([job.known.agreed for job in batch], inputs, exchange, mark)
        if request.kind == BROADCAST:
            return self._broadcast(ranks.index(request.root), inputs, outputs, exchange, mark)
        if request.kind == REDUCESCATTER:
            return self._reducescatter(request, inputs, exchange, mark)
        if request.kind == ALLTOALL:
            return [self._alltoall(batch[0].known.agreed, inputs[0][0], exchange, mark)]
        return [None] * len(batch)

    def _run_mixed(self, job: Job, exchange: Exchange, ranks: Sequence[int], mark: Marks) -> Any:
        """A group with tensors of several dtypes: one after the other."""
        results = []
        for at, part in enumerate(job.known.request.parts):
            fields = {name: getattr(job.known.request, name) for name in Request.__struct_fields__}
            request = Request(**fields | {"parts": (part,)})
            agreed = Agreed(request, tuple((sizes[at],) for sizes in job.known.agreed.sizes))
            inputs = [[_inputs(job)[at]]]
            outputs = [[job.own.outputs[at]] if job.own is not None and job.own.outputs is not None else None]
            if request.kind == ALLREDUCE:
                results += self._allreduce(request, inputs, outputs, exchange, mark)[0]
            elif request.kind == ALLGATHER:
                results += self._allgather([agreed], inputs, exchange, mark)[0]
            else:
                results += self._reducescatter(request, inputs, exchange, mark)[0]
        return results

    # -- each kind -------------------------------------------------------------------------------------------------

    def _allreduce(
        self,
        request: Request,
        inputs: list[list[torch.Tensor]],
        outputs: Sequence[list[torch.Tensor] | None],
        exchange: Exchange,
        mark: Marks,
    ) -> list[Any]:
        tensors = [tensor for group in inputs for tensor in group]
        into = [t for group, own in zip(outputs, inputs, strict=True) for t in (group if group is not None else own)]
        if len(tensors) == 1:
            flat = into[0].view(-1)
            if into[0] is not tensors[0]:
                flat.copy_(tensors[0].view(-1))
            self._reduce(flat, [flat.numel()], request, exchange, mark)
        else:
            mark("MEMCPY_IN_FUSION_BUFFER")
            lengths = [tensor.numel() for tensor in tensors]
            flat = self._buffer(tensors[0], sum(lengths))
            torch.cat(_flat(tensors), out=flat)
            self._reduce(flat, lengths, request, exchange, mark)
            mark("MEMCPY_OUT_FUSION_BUFFER")
            torch._foreach_copy_(_flat(into), flat.split(lengths))
        return [group if group is not None else None for group in outputs]

    def _reduce(
        self, flat: torch.Tensor, lengths: Sequence[int], request: Request, exchange: Exchange, mark: Marks
    ) -> None:
        scale(flat, request.prescale)
        mark("ADASUM_ALLREDUCE" if request.op == ADASUM else "ALLREDUCE")
        if request.op == ADASUM:
            adasum(exchange, flat, lengths)
        else:
            exchange.all_reduce(flat, request.op)
        finish_reduction(flat, request, exchange.world)

    def _allgather(
        self, agreed: Sequence[Agreed], inputs: list[list[torch.Tensor]], exchange: Exchange, mark: Marks
    ) -> list[Any]:
        tensors = [tensor for group in inputs for tensor in group]
        # rows[part][rank]
        rows = [[s[at] for s in each.sizes] for each in agreed for at in range(len(each.request.parts))]
        widths = [torch.Size(tensor.shape[1:]).numel() for tensor in tensors]
        mark("ALLGATHER")
        own = tensors[0].view(-1) if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
        totals = [sum(rows[p][r] * widths[p] for p in range(len(tensors))) for r in range(exchange.world)]
        whole = own.new_empty(sum(totals))
        exchange.all_gather(own, list(whole.split(totals)))
        if len(tensors) == 1:
            results = [whole.view(sum(rows[0]), *tensors[0].shape[1:])]
        else:
            results = self._sort_gathered(whole, rows, widths, [tensor.shape[1:] for tensor in tensors])
        return _regroup(results, inputs)

    def _sort_gathered(
        self, whole: torch.Tensor, rows: list[list[int]], widths: list[int], shapes: list[torch.Size]
    ) -> list[torch.Tensor]:
        """From rank by rank to tensor by tensor."""
        world, count = len(rows[0]), len(rows)
        pieces = whole.split([rows[p][r] * widths[p] for r in range(world) for p in range(count)])
        return [
            torch.cat([pieces[r * count + p] for r in range(world)]).view(sum(rows[p]), *shapes[p])
            for p in range(count)
        ]

    def _broadcast(
        self,
        root: int,
        inputs: list[list[torch.Tensor]],
        outputs: Sequence[list[torch.Tensor] | None],
        exchange: Exchange,
        mark: Marks,
    ) -> list[Any]:
        tensors = [tensor for group in inputs for tensor in group]
        into = [tensor for group in outputs if group is not None for tensor in group]
        mark("BROADCAST")
        if len(tensors) == 1:
            if exchange.rank == root and into[0] is not tensors[0]:
                into[0].copy_(tensors[0])
            exchange.broadcast(into[0].view(-1), root)
            return list(outputs)
        lengths = [tensor.numel() for tensor in tensors]
        flat = self._buffer(tensors[0], sum(lengths))
        if exchange.rank == root:
            torch.cat(_flat(tensors), out=flat)
        exchange.broadcast(flat, root)
        torch._foreach_copy_(_flat(into), flat.split(lengths))
        return list(outputs)

    def _reducescatter(
        self, request: Request, inputs: list[list[torch.Tensor]], exchange: Exchange, mark: Marks
    ) -> list[Any]:
        tensors = [tensor for group in inputs for tensor in group]
        rows = [split_rows(tensor.shape[0], exchange.world) for tensor in tensors]
        pieces = [tensor.split(each) for tensor, each in zip(tensors, rows, strict=True)]
        # All that rank 0 gets, then all that rank 1 gets, …
        flat = torch.cat([part[r].reshape(-1) for r in range(exchange.world) for part in pieces])
        counts = [sum(part[r].numel() for part in pieces) for r in range(exchange.world)]
        mark("REDUCESCATTER")
        scale(flat, request.prescale)
        own = flat.new_empty(counts[exchange.rank])
        exchange.reduce_scatter(flat, own, counts, request.op)
        finish_reduction(own, request, exchange.world)
        mine = [part[exchange.rank] for part in pieces]
        results = [
            (part if len(tensors) == 1 else part.clone()).view(piece.shape)
            for part, piece in zip(own.split([piece.numel() for piece in mine]), mine, strict=True)
        ]
        return _regroup(results, inputs)

    def _alltoall(self, agreed: Agreed, tensor: torch.Tensor, exchange: Exchange, mark: Marks) -> Any:
        """The received rows, and how many came from each rank."""
        mark("ALLTOALL")
        width = torch.Size(tensor.shape[1:]).numel()
        sent = [rows * width for rows in agreed.sizes[exchange.rank]]
        received = [splits[exchange.rank] for splits in agreed.sizes]
        whole = tensor.new_empty((sum(received), *tensor.shape[1:]))
        exchange.all_to_all(tensor.reshape(-1).split(sent), whole.view(-1).split([rows * width for rows in received]))
        return whole, received

    def _buffer(self, like: torch.Tensor, numel: int) -> torch.Tensor:
        """The fusion buffer of this dtype and device, which is kept."""
        key = like.dtype, like.device
        found = self._buffers.get(key)
        if found is None or found.numel() < numel:
            with torch.inference_mode(False):
                found = self._buffers[key] = torch.empty(numel, dtype=like.dtype, device=like.device)
        return found[:numel]


def _flat(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Making a view takes longer than copying a small tensor."""
    return [tensor if tensor.dim() == 1 else tensor.view(-1) for tensor in tensors]


def _inputs(job: Job) -> list[torch.Tensor]:
    if job.own is not None:
        return job.own.tensors
    device = job.known.request.device
    return [torch.zeros(shape, dtype=dtype_of(dtype), device=device) for dtype, shape in job.known.request.parts]


def _on_one_device(inputs: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """A script may have tensors on several GPUs: a buffer is on one of them."""
    device = inputs[0][0].device
    return [[tensor if tensor.device == device else tensor.to(device) for tensor in group] for group in inputs]


def _regroup(tensors: list[torch.Tensor], like: list[list[torch.Tensor]]) -> list[Any]:
    ends = list(accumulate(len(group) for group in like))
    return [tensors[end - len(group) : end] for end, group in zip(ends, like, strict=True)]


def split_rows(rows: int, world: int) -> list[int]:
    """The first ranks get a row more, if the rows cannot be split evenly."""
    each, more = divmod(rows, world)
    return [each + (rank < more) for rank in range(world)]


def finish_reduction(flat: torch.Tensor, request: Request, world: int) -> None:
    if request.op == AVERAGE:
        flat.div_(world, rounding_mode=None if flat.is_floating_point() else "trunc")
    scale(flat, request.postscale)


def scale(flat: torch.Tensor, factor: float) -> None:
    """In place. Integers are scaled in float64, and rounded toward zero."""
    if factor == 1.0:
        return
    if flat.is_floating_point() or flat.is_complex():
        flat.mul_(factor)
    else:
        flat.copy_(flat.double().mul_(factor))


# -- Adasum -----------------------------------------------------------------------------------------------------------
# For two gradients: a + b, each shortened by half of the other's projection on it. More gradients are combined in a
# binary tree of neighbours, each tensor on its own. Every rank gathers all gradients and computes the same tree:
# simple, and the result has the same bits on all ranks; it needs memory for one copy of the fused gradients per rank.


def adasum(exchange: Exchange, flat: torch.Tensor, lengths: Sequence[int]) -> None:
    """In place. `lengths` are those of the tensors in `flat`. The number of ranks is a power of 2."""
    if exchange.world == 1:
        return
    every = [torch.empty_like(flat) for _ in range(exchange.world)]
    exchange.all_gather(flat, every)
    while len(every) > 1:
        every = [_combine(a, b, lengths) for a, b in zip(every[::2], every[1::2], strict=True)]
    flat.copy_(every[0])


def _combine(a: torch.Tensor, b: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    parts = [_pair(one, other) for one, other in zip(a.split(list(lengths)), b.split(list(lengths)), strict=True)]
    return torch.cat(parts)


def _pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # Squares of small float16 numbers are zero in float16, and those of large ones infinite.
    wide_a, wide_b = a.double(), b.double()
    dot, of_a, of_b = wide_a.dot(wide_b), wide_a.dot(wide_a), wide_b.dot(wide_b)
    keep_a = torch.where(of_a > 0, 1 - dot / (2 * of_a), 1.0)
    keep_b = torch.where(of_b > 0, 1 - dot / (2 * of_b), 1.0)
    return (keep_a * wide_a + keep_b * wide_b).to(a.dtype)


# -- on the host, or on a stream of a GPU -----------------------------------------------------------------------------


class Runner:
    """Used by the background thread only."""

    def __init__(self, sets: ProcessSets) -> None:
        self._sets, self._executor = sets, Executor()
        self._streams: dict[torch.device, Any] = {}
        self.timeline: Timeline | None = None  # set by any thread
        self.join_device = 0  # the GPU for zeros, while this rank has joined

    def run(self, batch: list[Job]) -> list[Any]:
        """The result of each job. Ranks of the process set wait for each other."""
        request = batch[0].known.request
        exchange = self._sets.exchange(request.process_set, request.device)
        ranks, mark = self._sets.ranks[request.process_set], _ignore
        if (timeline := self.timeline) is not None:
            requests = [job.known.request for job in batch]
            timeline.begin(requests)
            mark = partial(timeline.activity, requests)
        # Tensors that were made in inference mode can be written only there. Leaving it switches gradients on.
        inference = any(job.own is not None and job.own.inference for job in batch)
        with torch.inference_mode(inference), torch.no_grad():
            if request.device == "cpu":
                results = self._executor.run(batch, exchange, ranks, mark)
            else:
                results = self._run_on_gpu(batch, lambda: self._executor.run(batch, exchange, ranks, mark))
        if timeline is not None:
            timeline.end([job.known.request for job in batch])
        return results

    def _run_on_gpu(self, batch: list[Job], run: Callable[[], list[Any]]) -> list[Any]:
        """On a stream of its own, after what the submitters' streams had done when they submitted."""
        tensors = [tensor for job in batch if job.own is not None for tensor in job.own.tensors]
        device = tensors[0].device if tensors else torch.device("cuda", self.join_device)
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for job in batch:
                if job.own is not None and job.own.event is not None:
                    stream.wait_event(job.own.event)
            results = run()
            done = stream.record_event()
        for job in batch:
            if job.own is not None:
                job.own.event = done
        return results


def _ignore(activity: str) -> None:
    pass
