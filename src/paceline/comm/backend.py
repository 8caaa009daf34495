"""`paceline` as a backend of torch.distributed: CPU tensors go through memory that the processes of a host share.

    import paceline
    dist.init_process_group("cpu:paceline,cuda:nccl")        # or new_group(backend="paceline")

DDP, FSDP2 and DTensor work on it unchanged. CUDA tensors are handed to NCCL. All processes of a group must be on one
host: a group that is not says so when it is made.

Every process of the group calls the same collectives in the same order; otherwise all of them raise `PartedError`, with
each one's place in its script. When a process of the group has ended, the others raise `PeerLostError` within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from paceline.comm.memory.engine import Engine, Reduce, add
from paceline.comm.memory.mailbox import Mailbox
from paceline.comm.memory.region import host_of_this_process
from paceline.comm.memory.works import Queue, Work
from paceline.errors import UsageError

_ProcessGroup: Any = dist.ProcessGroup  # its types are stricter than its callers
Op = dist.ReduceOp
REDUCTIONS: dict[Any, Reduce] = {
    Op.SUM: add,
    Op.AVG: add,
    Op.PRODUCT: lambda into, other: into.mul_(other),
    Op.MIN: lambda into, other: torch.minimum(into, other, out=into),
    Op.MAX: lambda into, other: torch.maximum(into, other, out=into),
    Op.BAND: lambda into, other: into.bitwise_and_(other),
    Op.BOR: lambda into, other: into.bitwise_or_(other),
    Op.BXOR: lambda into, other: into.bitwise_xor_(other),
}


class Backend(_ProcessGroup):
    """A group of processes on one host."""

    def __init__(self, options: Any) -> None:
        """Called by torch on every process of the group."""
        super().__init__(options.group_rank, options.group_size)
        rank, world, store = options.group_rank, options.group_size, options.store
        self._options = options
        self._cuda: Any = None
        self._name = self._desc = ""
        names = list(options.global_ranks_in_group) or list(range(world))
        self._refuse_other_hosts(store, rank, world, names)
        settings = {"names": names, "timeout": options.timeout.total_seconds()}
        self._engine = Engine(PrefixStore("engine", store), rank, world, **settings)
        self._mail = Mailbox(PrefixStore("mail", store), rank, world, **settings)
        self._queue = Queue("collectives", self._engine.at)
        self._lines: dict[tuple[str, int], Queue] = {}

    def _refuse_other_hosts(self, store: Any, rank: int, world: int, names: list[int]) -> None:
        store.set(f"host{rank}", host_of_this_process())
        hosts = [store.get(f"host{peer}") for peer in range(world)]
        if len(set(hosts)) > 1:
            other = next(peer for peer in range(world) if hosts[peer] != hosts[0])
            raise UsageError(
                f"Asked for the backend paceline, which goes through shared memory, but processes {names[0]} and "
                f"{names[other]} are not on one host.",
                advice='Use "gloo" for groups over several hosts, and "paceline" for groups within one.',
            )

    # -- collectives -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().allreduce(tensors, opts)
        reduce, divide = self._reduction(opts)

        def run() -> None:
            for tensor in tensors:
                flat = _flat(tensor)
                self._engine.all_reduce(flat, reduce)
                divide(flat)
                _back(tensor, flat)

        return self._begin(run, tensors, opts)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().broadcast(tensors, opts)

        def run() -> None:
            for tensor in tensors:
                flat = _flat(tensor)
                self._engine.broadcast(flat, opts.rootRank if opts is not None else 0)
                _back(tensor, flat)

        return self._begin(run, tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().reduce(tensors, opts)
        reduce, divide = self._reduction(opts)

        def run() -> None:
            for tensor in tensors:
                # What the others hold afterwards is undefined in torch; here it stays.
                flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
                self._engine.all_reduce(flat, reduce, name=f"reduce to {opts.rootRank}")
                if self.rank() == opts.rootRank:
                    divide(flat)
                    _back(tensor, flat)

        return self._begin(run, tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().allgather(outputs, inputs, opts)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flats = [_flat(piece) for piece in output]
                self._engine.all_gather(_flat(tensor), flats)
                for piece, flat in zip(output, flats, strict=True):
                    _back(piece, flat)

        return self._begin(run, outputs, opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().allgather_into_tensor_coalesced(outputs, inputs, opts)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flat = _flat(output)
                self._engine.all_gather(_flat(tensor), list(flat.chunk(self.size())) if flat.numel() else [flat])
                _back(output, flat)

        return self._begin(run, outputs, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().reduce_scatter(outputs, inputs, opts)
        reduce, divide = self._reduction(opts)

        def run() -> None:
            for output, pieces in zip(outputs, inputs, strict=True):
                whole = torch.cat([piece.detach().reshape(-1) for piece in pieces])
                self._scatter_sum(output, whole, [piece.numel() for piece in pieces], reduce, divide)

        return self._begin(run, outputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        reduce, divide = self._reduction(opts)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                self._scatter_sum(output, _flat(tensor), [output.numel()] * self.size(), reduce, divide)

        return self._begin(run, outputs, opts)

    def _scatter_sum(self, output: Any, whole: Any, counts: list[int], reduce: Reduce, divide: Any) -> None:
        flat = _flat(output)
        self._engine.reduce_scatter(whole, flat, counts, reduce)
        divide(flat)
        _back(output, flat)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Any, splits: Any, opts: Any = None
    ) -> Any:
        if tensor.is_cuda:
            return self._nccl().alltoall_base(output, tensor, output_splits, splits, opts)

        def run() -> None:
            flat = _flat(output)
            self._engine.all_to_all(_pieces(_flat(tensor), tensor, splits), _pieces(flat, output, output_splits))
            _back(output, flat)

        def _pieces(flat: torch.Tensor, shaped: torch.Tensor, sizes: Any) -> list[torch.Tensor]:
            row = shaped[0].numel() if len(shaped) else 0
            if not sizes:
                return list(flat.split(flat.numel() // self.size())) if flat.numel() else [flat] * self.size()
            return list(flat.split([size * row for size in sizes]))

        return self._begin(run, [output], opts)

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().alltoall(outputs, inputs, opts)

        def run() -> None:
            flats = [_flat(piece) for piece in outputs]
            self._engine.all_to_all([_flat(piece) for piece in inputs], flats)
            for piece, flat in zip(outputs, flats, strict=True):
                _back(piece, flat)

        return self._begin(run, outputs, opts)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().gather(outputs, inputs, opts)

        def run() -> None:
            pieces = outputs[0] if self.rank() == opts.rootRank else None
            flats = None if pieces is None else [_flat(piece) for piece in pieces]
            self._engine.gather(_flat(inputs[0]), flats, opts.rootRank)
            for piece, flat in zip(pieces or (), flats or (), strict=True):
                _back(piece, flat)

        return self._begin(run, outputs, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().scatter(outputs, inputs, opts)

        def run() -> None:
            pieces = [_flat(piece) for piece in inputs[0]] if self.rank() == opts.rootRank else None
            flat = _flat(outputs[0])
            self._engine.scatter(flat, pieces, opts.rootRank)
            _back(outputs[0], flat)

        return self._begin(run, outputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._begin(self._engine.barrier, None, opts)

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().send(tensors, to, tag)
        data = _bytes(_flat(tensors[0]))
        return self._line("to", to).run(Work(tensors), lambda: self._mail.send(data, to, tag), later=True)

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().recv(tensors, source, tag)

        def run() -> None:
            flat = _flat(tensors[0])
            self._mail.receive(_bytes(flat), source, tag)
            _back(tensors[0], flat)

        return self._line("from", source).run(Work(tensors, source), run, later=True)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        work = Work(tensors)

        def run() -> None:
            flat = _flat(tensors[0])
            work.source = self._mail.receive_any(_bytes(flat), tag)
            _back(tensors[0], flat)

        return self._line("from", -1).run(work, run, later=True)

    def _line(self, way: str, peer: int) -> Queue:
        """Messages of a pair keep their order; those of other pairs don't wait for them."""
        if (way, peer) not in self._lines:
            self._lines[way, peer] = Queue(f"{way} {peer}", self._mail.at)
        return self._lines[way, peer]

    # -- what torch asks -------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "paceline"

    def name(self) -> str:
        return "paceline"

    def _set_group_name(self, name: str) -> None:
        self._name = name
        super()._set_group_name(name)

    def getGroupName(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc
        super()._set_group_desc(desc)

    @property
    def group_desc(self) -> str:
        return self._desc

    def abort(self) -> None:
        """Nothing to take down: the memory goes with the processes."""

    def shutdown(self) -> None:
        """Nothing to take down: the memory goes with the processes."""

    # Since torch 2.13 these go by other names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # -- underneath ------------------------------------------------------------------------------------------------

    def _begin(self, run: Callable[[], None], result: Any, opts: Any) -> Work:
        return self._queue.run(Work(result), run, later=getattr(opts, "asyncOp", True))

    def _reduction(self, opts: Any) -> tuple[Reduce, Callable[[torch.Tensor], Any]]:
        op = opts.reduceOp if opts is not None else Op.SUM
        kind = getattr(op, "op", op)
        if kind not in REDUCTIONS:
            raise ValueError(
                f"The backend paceline cannot reduce by {op}; it can by {', '.join(o.name for o in REDUCTIONS)}."
            )
        return REDUCTIONS[kind], self._divide if kind == Op.AVG else lambda flat: None

    def _divide(self, flat: torch.Tensor) -> None:
        if flat.is_floating_point() or flat.is_complex():
            flat.div_(self.size())
        else:
            flat.div_(self.size(), rounding_mode="trunc")

    def _nccl(self) -> Any:
        if self._cuda is None:
            options = self._options
            store = PrefixStore("cuda", options.store)
            self._cuda = dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, options.timeout)
        return self._cuda


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers in a row: the tensor's own memory where that is in a row already."""
    tensor = tensor.detach()
    return tensor.view(-1) if tensor.is_contiguous() else tensor.contiguous().view(-1)


def _back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Writes them back, where they were copied."""
    if not tensor.is_contiguous():
        with torch.no_grad():
            tensor.copy_(flat.view(tensor.shape))


def _bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)
