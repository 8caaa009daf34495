"""The torch.distributed backend `paceline`: collectives on CPU tensors through the shared memory of one host.

    import paceline
    dist.init_process_group("cpu:paceline,cuda:nccl")        # or new_group(backend="paceline")

DDP, FSDP2 and DTensor work unchanged. CUDA tensors are handed to NCCL. All processes of a group must be on one host;
otherwise creating the group raises `UsageError`.

Every process of the group calls the same collectives in the same order; otherwise all processes raise `PartedError`,
with the script line of each. If a process of the group ends, the others raise `PeerLostError` within a second.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline import threads
from paceline.comm.call_site import script_line
from paceline.comm.memory.engine import MemoryEngine
from paceline.comm.memory.flats import bytes_of, flat_of, write_back
from paceline.comm.memory.mailbox import Mailbox
from paceline.comm.memory.operations import MemoryOperation, operation
from paceline.comm.memory.pipelined_allreduce import add
from paceline.comm.memory.region import host_of_this_process
from paceline.comm.sparse import sparse
from paceline.errors import PacelineError, UsageError
from paceline.torch_private import PrefixStore

_ProcessGroup: Any = dist.ProcessGroup  # its type annotations are stricter than its callers


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
        self._engine = MemoryEngine(PrefixStore("engine", store), rank, world, **settings)
        self._mail = Mailbox(PrefixStore("mail", store), rank, world, **settings)
        self._done = Work(None)  # returned by all synchronous calls
        self._done.finish()
        self._queue = Queue("collectives", self._engine.at)
        self._lines: dict[tuple[str, int], MessageQueues] = {}  # by direction and peer
        self._lock = threading.Lock()

    def _refuse_other_hosts(self, store: Any, rank: int, world: int, names: list[int]) -> None:
        store.set(f"host{rank}", host_of_this_process())
        hosts = [store.get(f"host{peer}") for peer in range(world)]
        if len(set(hosts)) > 1:
            other = next(peer for peer in range(world) if hosts[peer] != hosts[0])
            raise UsageError(
                f'The backend "paceline" uses shared memory, but processes {names[0]} and {names[other]} are not on '
                "one host.",
                advice='Use backend="gloo" for groups over several hosts, and "paceline" for groups within one host.',
            )

    # -- collectives -----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().allreduce(tensors, opts)
        by = self._reduction(opts, tensors[0].dtype)

        def run() -> None:
            for tensor in tensors:
                if tensor.is_sparse:
                    self._sum_sparse(tensor, by)
                    continue
                flat = flat_of(tensor)
                self._engine.all_reduce(flat, by.reduce, name=f"all_reduce{by.words}")
                by.divide(flat)
                write_back(tensor, flat)

        if tensors[0].is_sparse and by.reduce is not add:
            raise ValueError("The backend paceline can reduce sparse tensors by SUM and AVG only.")
        return self._begin("all_reduce", run, tensors, opts)

    @torch.no_grad()
    def _sum_sparse(self, tensor: torch.Tensor, by: MemoryOperation) -> None:
        """Gathers the indices and values of all workers; `coalesce` adds the values of equal indices."""
        own = tensor.detach().coalesce()
        counts = self._engine.gather_sizes(own.values().shape[0])
        indices = self._gather_rows(own.indices().t(), counts).t()
        values = self._gather_rows(own.values(), counts)
        total = sparse(indices, values, own.shape).coalesce()
        by.divide(total.values())
        tensor.copy_(total)

    def _gather_rows(self, rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """The rows of all workers, concatenated in rank order."""
        whole = rows.new_empty((sum(counts), *rows.shape[1:]))
        self._engine.all_gather(flat_of(rows), [flat_of(part) for part in whole.split(counts)])
        return whole

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().broadcast(tensors, opts)

        def run() -> None:
            for tensor in tensors:
                flat = flat_of(tensor)
                self._engine.broadcast(flat, opts.rootRank if opts is not None else 0)
                write_back(tensor, flat)

        return self._begin("broadcast", run, tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().reduce(tensors, opts)
        by = self._reduction(opts, tensors[0].dtype)

        def run() -> None:
            for tensor in tensors:
                # torch leaves the tensors of the other ranks undefined; here they stay unchanged.
                flat = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1)
                self._engine.all_reduce(flat, by.reduce, name=f"reduce to {opts.rootRank}{by.words}")
                if self.rank() == opts.rootRank:
                    by.divide(flat)
                    with torch.no_grad():
                        tensor.copy_(flat.view(tensor.shape))

        return self._begin("reduce", run, tensors, opts)

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().allgather(outputs, inputs, opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_pieces("all_gather", output, tensor)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flats = [flat_of(piece) for piece in output]
                self._engine.all_gather(flat_of(tensor), flats)
                for piece, flat in zip(output, flats, strict=True):
                    write_back(piece, flat)

        return self._begin("all_gather", run, outputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """`outputs[r]` receives the tensors of worker r."""
        return self.allgather([list(output) for output in zip(*outputs, strict=True)], inputs, opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            # NCCL's group has no call for several tensors. They share a stream: who waits for the last waits for all.
            gather = self._nccl()._allgather_base
            return [gather(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_whole("all_gather_into_tensor", output, tensor)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                flat = flat_of(output)
                self._engine.all_gather(flat_of(tensor), list(flat.view(self.size(), tensor.numel())))
                write_back(output, flat)

        return self._begin("all_gather", run, outputs, opts)

    def reduce_scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().reduce_scatter(outputs, inputs, opts)
        for output, pieces in zip(outputs, inputs, strict=True):
            self._check_pieces("reduce_scatter", pieces, output)
        by = self._reduction(opts, outputs[0].dtype)

        def run() -> None:
            for output, pieces in zip(outputs, inputs, strict=True):
                whole = torch.cat([piece.detach().reshape(-1) for piece in pieces])
                self._scatter_sum(output, whole, [piece.numel() for piece in pieces], by)

        return self._begin("reduce_scatter", run, outputs, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            scatter = self._nccl()._reduce_scatter_base
            return [scatter(*pair, opts) for pair in zip(outputs, inputs, strict=True)][-1]
        for output, tensor in zip(outputs, inputs, strict=True):
            self._check_whole("reduce_scatter_tensor", tensor, output)
        by = self._reduction(opts, outputs[0].dtype)

        def run() -> None:
            for output, tensor in zip(outputs, inputs, strict=True):
                self._scatter_sum(output, flat_of(tensor), [output.numel()] * self.size(), by)

        return self._begin("reduce_scatter", run, outputs, opts)

    def _scatter_sum(self, output: Any, whole: Any, counts: list[int], by: MemoryOperation) -> None:
        flat = flat_of(output)
        self._engine.reduce_scatter(whole, flat, counts, by.reduce, name=f"reduce_scatter{by.words}")
        by.divide(flat)
        write_back(output, flat)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Any, splits: Any, opts: Any = None
    ) -> Any:
        if tensor.is_cuda:
            return self._nccl().alltoall_base(output, tensor, output_splits, splits, opts)
        parts, into_parts = self._splits(tensor, splits), self._splits(output, output_splits)

        def run() -> None:
            flat = flat_of(output)
            self._engine.all_to_all(list(flat_of(tensor).split(parts)), list(flat.split(into_parts)))
            write_back(output, flat)

        return self._begin("all_to_all", run, [output], opts)

    def _splits(self, tensor: torch.Tensor, sizes: Any) -> list[int]:
        """The number of elements in each worker's part. `sizes` are rows; an empty `sizes` means equal parts."""
        rows = len(tensor)
        sizes = list(sizes) or [rows // self.size()] * self.size()
        if sum(sizes) != rows or len(sizes) != self.size():
            raise ValueError(f"all_to_all: {rows} rows cannot be split into {sizes} among {self.size()} workers.")
        return [size * (tensor.numel() // rows) if rows else 0 for size in sizes]

    def alltoall(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().alltoall(outputs, inputs, opts)
        for pieces, others in (inputs, outputs), (outputs, inputs):
            self._check_pieces("all_to_all", pieces, others[min(self.rank(), len(others) - 1)])

        def run() -> None:
            flats = [flat_of(piece) for piece in outputs]
            self._engine.all_to_all([flat_of(piece) for piece in inputs], flats)
            for piece, flat in zip(outputs, flats, strict=True):
                write_back(piece, flat)

        return self._begin("all_to_all", run, outputs, opts)

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> Any:
        if inputs[0].is_cuda:
            return self._nccl().gather(outputs, inputs, opts)
        if self.rank() == opts.rootRank:
            self._check_pieces("gather", outputs[0], inputs[0], equal=True)

        def run() -> None:
            pieces = outputs[0] if self.rank() == opts.rootRank else None
            flats = None if pieces is None else [flat_of(piece) for piece in pieces]
            self._engine.gather(flat_of(inputs[0]), flats, opts.rootRank)
            for piece, flat in zip(pieces or (), flats or (), strict=True):
                write_back(piece, flat)

        return self._begin("gather", run, outputs, opts)

    def scatter(self, outputs: list[torch.Tensor], inputs: list[list[torch.Tensor]], opts: Any = None) -> Any:
        if outputs[0].is_cuda:
            return self._nccl().scatter(outputs, inputs, opts)
        if self.rank() == opts.rootRank:
            self._check_pieces("scatter", inputs[0], outputs[0], equal=True)

        def run() -> None:
            pieces = [flat_of(piece) for piece in inputs[0]] if self.rank() == opts.rootRank else None
            flat = flat_of(outputs[0])
            self._engine.scatter(flat, pieces, opts.rootRank)
            write_back(outputs[0], flat)

        return self._begin("scatter", run, outputs, opts)

    def barrier(self, opts: Any = None) -> Any:
        return self._begin("barrier", self._engine.barrier, None, opts)

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, tensors: list[torch.Tensor], to: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().send(tensors, to, tag)
        data = bytes_of(flat_of(tensors[0]))
        return self._post("to", to, 0, Work(tensors, name="send"), lambda: self._mail.send(data, to, tag))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int = 0) -> Any:
        if tensors[0].is_cuda:
            return self._nccl().recv(tensors, source, tag)

        def run() -> None:
            flat = flat_of(tensors[0])
            self._mail.receive(bytes_of(flat), source, tag)
            write_back(tensors[0], flat)

        return self._post("from", source, tag, Work(tensors, source, name="receive"), run)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Any:
        work = Work(tensors, name="receive")

        def run() -> None:
            flat = flat_of(tensors[0])
            work.source = self._mail.receive_any(bytes_of(flat), tag)
            write_back(tensors[0], flat)

        return self._post("from", -1, tag, work, run)

    def _post(self, way: str, peer: int, tag: int, work: Work, run: Callable[[], None]) -> Work:
        with self._lock:
            lines = self._lines.get((way, peer))
            if lines is None:
                lines = self._lines[way, peer] = MessageQueues(f"{way} {peer}", self._mail.at)
            return lines.run(tag, work, run)

    # -- called by torch -------------------------------------------------------------------------------------------

    def _get_backend(self, device: torch.device) -> Backend:
        """This object is group and backend in one, for all devices. torch 2.15 calls it before batched sends."""
        return self

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
        """Its threads end. Its memory is freed with the last reference."""
        self.shutdown()

    def shutdown(self) -> None:
        """Called when the group is destroyed."""
        self._queue.close()
        with self._lock:
            for lines in self._lines.values():
                lines.close()

    # torch 2.13 and later call these methods by other names.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # -- underneath ------------------------------------------------------------------------------------------------

    def _begin(self, name: str, run: Callable[[], None], result: Any, opts: Any) -> Work:
        if getattr(opts, "asyncOp", True):
            return self._queue.run(Work(result, name=name), run, later=True)
        self._queue.run_now(run)
        return self._done

    def _reduction(self, opts: Any, dtype: torch.dtype) -> MemoryOperation:
        return operation(opts.reduceOp if opts is not None else dist.ReduceOp.SUM, dtype, self.size())

    # Local mistakes must raise before the first signal: later, the peers would already be inside the collective.

    def _check_pieces(
        self, name: str, pieces: Sequence[torch.Tensor], own: torch.Tensor, *, equal: bool = False
    ) -> None:
        """There is one piece per worker, and this worker's piece (`equal`: every piece) matches `own`."""
        if len(pieces) != self.size():
            raise ValueError(f"{name}: found {len(pieces)} tensors for {self.size()} workers.")
        for piece in pieces if equal else [pieces[self.rank()]]:
            if piece.numel() != own.numel() or piece.dtype != own.dtype:
                raise ValueError(f"{name}: {piece.numel()} {piece.dtype} do not match {own.numel()} {own.dtype}.")

    def _check_whole(self, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        if whole.numel() != part.numel() * self.size() or whole.dtype != part.dtype:
            raise ValueError(
                f"{name}: {whole.numel()} {whole.dtype} are not {self.size()} times {part.numel()} {part.dtype}."
            )

    def _nccl(self) -> Any:
        if self._cuda is None:
            options = self._options
            store = PrefixStore("cuda", options.store)
            self._cuda = dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, options.timeout)
        return self._cuda


# -- works ------------------------------------------------------------------------------------------------------------
# A synchronous collective runs in the caller's own thread as soon as the earlier collectives have finished: handing it
# to another thread would take longer than most collectives do.


class WaitTimeoutError(PacelineError, RuntimeError):
    """`wait(timeout)` timed out. A RuntimeError, like the time-out errors of torch's own backends, so that a script can
    catch both in the same way."""


class Work(dist.Work):
    """One collective. If the collective raised an error, `wait` raises the same error."""

    def __init__(self, result: Any, source: int = -1, *, name: str = "collective") -> None:
        super().__init__()
        self.source, self.name = source, name
        self.site = ""  # the script line that started it
        self._result, self._error = result, None
        self._done = threading.Event()
        self._future: Any = None
        self._ended: Any = None
        self._lock = threading.Lock()

    def finish(self, error: Any = None) -> bool:
        """Marks the work as finished. Returns whether there is a future: then the caller must call `settle`."""
        with self._lock:
            self._error = error
            self._done.set()
            return self._future is not None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Waits for the end of the work, or raises WaitTimeoutError after `timeout`; in torch, zero means no limit. As
        with Gloo, the work goes on after a time-out and the group stays usable: the caller may wait again."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise WaitTimeoutError(
                f"Operation timed out! The {self.name} started at {self.site} has not finished after {seconds:g} s.",
                advice=f"The {self.name} is still running: call wait() again, with a longer timeout. If it never "
                "finishes, another rank has not made the same call.",
            )
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Any:
        with self._lock:
            is_first = self._future is None
            if is_first:
                # DDP reads futures in C++, which sees an error only if a callback of the future has raised it.
                self._ended = torch.futures.Future()
                self._future = self._ended.then(self._resolve)
            is_done = self._done.is_set()
        if is_first and is_done:
            self.settle()
        return self._future

    def settle(self) -> None:
        """Sets the value of the future. Its callbacks run in this thread and may wait for other works."""
        self._ended.set_result(None)

    def _resolve(self, ended: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def is_completed(self) -> bool:
        return self._done.is_set()

    def is_success(self) -> bool:
        return self._done.is_set() and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> Any:
        return self._result

    def _source_rank(self) -> int:
        return self.source

    def source_rank(self) -> int:
        return self.source


class Queue:
    """Runs works one after the other."""

    def __init__(self, name: str, set_site: Callable[[Callable[[], str]], None]) -> None:
        """`set_site` is called before each work, with a function that returns the script line of its call."""
        self._name, self._set_site = name, set_site
        self._todo: deque[tuple[Work, Callable[[], Any], bool]] = deque()
        self._change = threading.Condition()
        self._running = self._closed = False
        self._threads = self._idle = 0

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._todo

    def run(self, work: Work, function: Callable[[], Any], *, later: bool) -> Work:
        """Runs the function now, in this thread; with `later`, in the queue's own thread."""
        if not later:
            self.run_now(function)
            work.finish()
            return work
        with self._change:
            work.site = script_line()
            self._todo.append((work, function, torch.is_inference_mode_enabled()))
            if not self._threads:
                self._start_thread()
            self._change.notify_all()
        return work

    def run_now(self, function: Callable[[], Any]) -> None:
        """Runs the function in this thread, after all works that were started earlier."""
        with self._change:
            while self._todo or self._running:
                self._change.wait()
            self._running = True
        try:
            self._set_site(script_line)
            function()
        finally:
            self._stop_running()

    def close(self) -> None:
        """Lets the queue's threads end after they have run all started works."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _start_thread(self) -> None:
        self._threads += 1
        threads.start(f"paceline {self._name}", self._serve)

    def _serve(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        with self._change:
            self._idle += 1
            while self._running or not (self._todo or self._closed):
                self._change.wait()
            self._idle -= 1
            if not self._todo:
                self._threads -= 1
                return False
            work, function, inference = self._todo.popleft()
            self._running = True
        site = work.site  # the lambda must not keep the work and its tensors alive
        self._set_site(lambda: site)
        error: Exception | None = None
        try:
            with torch.inference_mode(inference):  # inference tensors can only be written in inference mode
                function()
        except Exception as raised:
            error = raised
        has_future = work.finish(error)
        self._stop_running()
        if has_future:
            # Callbacks of the future may start other works and wait for them: another thread must be free to run those
            # works.
            with self._change:
                if not self._idle:
                    self._start_thread()
            work.settle()
        return True

    def _stop_running(self) -> None:
        with self._change:
            self._running = False
            self._change.notify_all()


class MessageQueues:
    """Queues for the messages of a pair of workers. Messages with the same tag keep their order; messages with
    different tags do not wait for each other."""

    def __init__(self, name: str, set_site: Callable[[Callable[[], str]], None]) -> None:
        self._name, self._set_site = name, set_site
        self._queues: list[tuple[int, Queue]] = []  # each with the tag of its last message

    def run(self, tag: int, work: Work, function: Callable[[], Any]) -> Work:
        """Runs the function in a queue's thread. Only one thread at a time may call it."""
        at = next((i for i, (last, _) in enumerate(self._queues) if last == tag), None)
        if at is None:  # reuse an idle queue: as many queues as there are tags in use at the same time
            at = next((i for i, (_, queue) in enumerate(self._queues) if queue.is_idle), len(self._queues))
        queue = self._queues[at][1] if at < len(self._queues) else Queue(self._name, self._set_site)
        self._queues[at : at + 1] = [(tag, queue)]
        return queue.run(work, function, later=True)

    def close(self) -> None:
        for _, queue in self._queues:
            queue.close()
