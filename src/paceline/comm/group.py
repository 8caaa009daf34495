"""The workers of a run, and the collectives between them.

Made on torch's own process groups, but never the default one: a script that asks `dist.is_initialized()` gets the
answer that it would get alone, and one that makes its own group can. Small messages and rows travel on one channel,
gradient buckets on another, so that a bucket that is ready early on one worker cannot be mistaken for a gather.

Every method is called by every worker, in the same order. Each waits for all of them. When a peer is gone it raises
`PeerLostError`; when the peers called something else, `PartedError`, unless Gloo notices first and ends the process,
which the launcher explains.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.errors import PacelineError, PartedError, PeerLostError
from paceline.settings import WorkerSettings

# The stall inspector decides when waiting is too long, with both sides' stacks in hand; a time-out knows neither.
FOREVER = datetime.timedelta(days=30)
GONE = (
    "closed by peer",
    "connection reset",
    "broken pipe",
    "timed out",
    "connection refused",
    "remote process exited",
)


class Group:
    """All workers of a run. With one worker every collective is the identity and nothing is connected."""

    def __init__(self, settings: WorkerSettings, *, pulse: Pulse | None = None, watch: Stopwatch | None = None) -> None:
        self.rank, self.world = settings.rank, settings.world
        self.pulse = pulse or Pulse()
        self.watch = watch or Stopwatch()
        self.backend = settings.run.backend
        self._local_world = settings.local_world
        self.crossed = 0  # how often a gradient has crossed from the whole batch into slices
        self._cuda: Any = None
        self._store: Any = None
        if self.world > 1:
            self._store = connect_store(settings)
            self._rows = self._gloo("rows")
            self._buckets = self._gloo("buckets")

    # -- collectives ----------------------------------------------------------------------------------------------

    def all_reduce(self, tensor: torch.Tensor, what: str) -> None:
        """Sums `tensor` over the workers, in place."""
        if self.world > 1:
            self._await(self._start_all_reduce(tensor, self._rows), what)

    def start_all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Begins to sum a gradient bucket in place; `finish` waits for it. Order is the order of starting."""
        return Pending(self, self._start_all_reduce(tensor, self._buckets))

    def broadcast(self, tensor: torch.Tensor, what: str) -> None:
        """Gives every worker rank 0's values, in place."""
        if self.world == 1 or not tensor.numel():
            return
        host = as_bytes(tensor)
        self._await(self._rows.broadcast([host], _options(dist.BroadcastOptions, rootRank=0)), what)
        with torch.no_grad():
            tensor.copy_(host.view(tensor.dtype).view(tensor.shape))

    def gather_rows(self, rows: torch.Tensor, dim: int, sizes: Sequence[int], what: str) -> torch.Tensor:
        """All workers' rows side by side along `dim`; `sizes[r]` is how many worker r brings."""
        if self.world == 1:
            return rows
        mine = rows.movedim(dim, 0).contiguous()
        longest = max(sizes)
        if mine.shape[0] < longest:
            mine = torch.cat([mine, mine.new_zeros((longest - mine.shape[0], *mine.shape[1:]))])
        if rows.is_cuda and self.backend != "gloo" and self._nccl() is not None:
            out = mine.new_empty((self.world * longest, *mine.shape[1:]))
            self._await(self._nccl()._allgather_base(out, mine), what)
        else:
            out = torch.empty((self.world * longest, *mine.shape[1:]), dtype=mine.dtype)
            self._await(self._rows._allgather_base(as_bytes(out), as_bytes(mine)), what)
            out = out.to(rows.device)
        if any(size != longest for size in sizes):
            out = torch.cat([out[r * longest : r * longest + size] for r, size in enumerate(sizes)])
        # Not a view: the script may change it in place.
        return out.movedim(0, dim).contiguous() if dim else out

    def gather_vectors(self, vector: torch.Tensor, what: str) -> torch.Tensor:
        """One row a worker: a host vector of the same length on each."""
        if self.world == 1:
            return vector.unsqueeze(0)
        out = vector.new_empty((self.world, vector.numel()))
        self._await(self._rows._allgather_base(out, vector.unsqueeze(0)), what)
        return out

    def gather_objects(self, value: Any, what: str) -> list[Any]:
        """Any picklable value of each worker, in the order of ranks."""
        if self.world == 1:
            return [value]
        raw = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self.gather_vectors(torch.tensor([raw.numel()]), what).flatten().tolist()
        whole = self.gather_rows(raw, 0, sizes, what)
        return [pickle.loads(part.numpy().tobytes()) for part in whole.split(sizes)]

    # -- underneath -----------------------------------------------------------------------------------------------

    def _gloo(self, channel: str) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = FOREVER
        if self._local_world == self.world:
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        else:
            options._devices = [dist.ProcessGroupGloo.create_default_device()]
        store = PrefixStore(f"paceline/{channel}", self._store)
        try:
            return dist.ProcessGroupGloo(store, self.rank, self.world, options)
        except RuntimeError as error:
            raise self._explain(error, "start") from error

    def _nccl(self) -> Any:
        """The GPUs' own group, made when the first CUDA tensor comes; None where workers share a GPU."""
        if self._cuda is None:
            own_gpu = torch.cuda.device_count() >= self._local_world
            if self.backend == "nccl" or (own_gpu and dist.is_nccl_available()):
                store = PrefixStore("paceline/cuda", self._store)
                self._cuda = dist.ProcessGroupNCCL(store, self.rank, self.world)  # type: ignore[call-arg]
            else:
                self._cuda = False
                self.pulse.notice(
                    f"{self._local_world} workers share {torch.cuda.device_count()} GPU(s): "
                    "collectives go through the host (gloo)."
                )
        return self._cuda or None

    def _start_all_reduce(self, tensor: torch.Tensor, channel: Any) -> list[Any]:
        """A list of (work, host copy or None, tensor)."""
        if tensor.is_cuda and self.backend != "gloo" and self._nccl() is not None:
            return [(self._nccl().allreduce([tensor], dist.AllreduceOptions()), None, tensor)]
        # Half types are summed in float32: no backend of the host does it otherwise, and it is more exact.
        small = tensor.dtype in (torch.float16, torch.bfloat16)
        if tensor.is_cuda or small or not tensor.is_contiguous():
            host = tensor.detach().to("cpu", torch.float32 if small else tensor.dtype).contiguous()
            return [(channel.allreduce([host], dist.AllreduceOptions()), host, tensor)]
        return [(channel.allreduce([tensor], dist.AllreduceOptions()), None, tensor)]

    def _await(self, works: Any, what: str) -> None:
        """Waits, on the clock of exposed communication and in sight of the stall inspector."""
        self.pulse.enter(what)
        timed = self.watch.phase != "evaluation"
        if timed:
            self.watch.enter("communication")
        try:
            for work, host, tensor in works if isinstance(works, list) else [(works, None, torch.empty(0))]:
                work.wait()
                if host is not None:
                    with torch.no_grad():
                        tensor.copy_(host)
        except RuntimeError as error:
            raise self._explain(error, what) from error
        finally:
            if timed:
                self.watch.leave()
        self.pulse.leave()

    def _explain(self, error: RuntimeError, what: str) -> PacelineError:
        text = str(error)
        if any(sign in text.lower() for sign in GONE):
            return PeerLostError(f"Worker {self.rank} lost a peer while waiting for {what}: {text.splitlines()[0]}")
        return PartedError(
            f"The workers entered different collectives; worker {self.rank} was at: {what} ({text.splitlines()[0]}).",
            advice="Look for a branch of the script that depends on time, on unseeded randomness or on the process.",
        )


class Pending:
    """A collective under way."""

    def __init__(self, group: Group, works: list[Any]) -> None:
        self._group, self._works = group, works

    def finish(self, what: str) -> None:
        self._group._await(self._works, what)


def connect_store(settings: WorkerSettings) -> Any:
    """Torch's rendezvous store: rank 0 serves it on the socket that it inherited, the others connect."""
    if settings.store_fd is not None:
        return TCPStore(
            settings.store_host,
            settings.store_port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=settings.store_fd,
        )
    # Under another launcher nobody serves yet: rank 0 does, unless that launcher's agent already has.
    master = settings.rank == 0 and not settings.control and not settings.agent_store
    return TCPStore(
        settings.store_host, settings.store_port, is_master=master, wait_for_workers=False, multi_tenant=True
    )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory on the host, as bytes: gathers and broadcasts move any dtype alike."""
    host = tensor.detach().to("cpu").contiguous()
    return host.as_strided((host.numel(),), (1,)).view(torch.uint8)  # a size of 1 may come with any stride


def _options(kind: Any, **fields: Any) -> Any:
    options = kind()
    for name, value in fields.items():
        setattr(options, name, value)
    return options
