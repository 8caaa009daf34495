"""The workers of a run, and the collectives between them.

The group never uses torch's default process group: `dist.is_initialized()` answers the script as in a single process,
and the script can create groups of its own. Tensors in host memory go through shared memory if all workers are on one
host, and otherwise over Gloo. GPU tensors go over NCCL, or through host memory if workers share a GPU.

Every worker calls the same methods in the same order, and each method waits for all workers. If a peer is gone, the
method raises `PeerLostError`. If the peers called a different collective, the method raises `PartedError`, unless Gloo
notices first and ends the process; the launcher then explains the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from paceline.comm.channels import Channel, GlooChannel, GpuChannel, MemoryChannel, Pending, over_nccl
from paceline.comm.elastic_channel import ElasticChannel
from paceline.comm.ending import CalledOff, Ending, Regrouping, from_backend, says_lost
from paceline.comm.hosts import HostsChannel, address_towards, compressor
from paceline.comm.members import Members, again, lost_at
from paceline.comm.memory.flats import as_bytes, copy_back, summable
from paceline.comm.memory.mailbox import Mailbox
from paceline.comm.memory.reductions import Shared
from paceline.comm.memory.region import host_of_this_process
from paceline.comm.memory.shm_rendezvous import Meeting
from paceline.comm.network import post
from paceline.comm.network.gloo import LOOPBACK, gloo_group
from paceline.comm.network.post import Post, over_gloo, through_memory
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.errors import PacelineError, PartedError, PeerLostError, ScriptError
from paceline.record.phases import COMMUNICATION
from paceline.record.timeline import TimelineWriter
from paceline.settings import Compression, WorkerSettings
from paceline.torch_private import unseen_by_modes
from paceline.wire.link import LinkStore, connect_store, within

# Bound before `script/own_gpu.py` patches torch's function: the workers need the count that the script does not see.
count_gpus = torch.cuda.device_count
CONNECTING = "start-up: connecting all workers"


class Group:
    """All workers of a run. With one worker every collective is the identity and nothing is connected."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        pulse: Pulse | None = None,
        watch: Stopwatch | None = None,
        store: Any = None,
    ) -> None:
        """`store`: of the run, if it is connected already."""
        self.rank, self.world = settings.rank, settings.world
        self.pulse = pulse or Pulse()
        self.watch = watch or Stopwatch()
        self._settings, self.backend = settings, settings.run.backend
        self.local_world = settings.local_world
        self.timeline: TimelineWriter | None = None
        self.ending = Ending(self.pulse)
        self.together: Any = None  # set by the stage: runs work in which a worker may fail
        self.functions: Any = None  # set by the stage: computes functions of sharded outputs on own rows
        self.guarded = 0  # > 0 in joint work in which a worker may fail: see `called_off`
        self.redone = 0  # joint works under way that are done again, each as a whole, when a worker is lost
        self.off = False  # joint work was called off: no collective until all workers call `begin_again`
        self.crossed = 0  # number of times that a gradient has crossed from the whole batch into slices
        self.members: Members | None = None  # in an elastic run: who is left
        self.retries = False  # inside a collective that is made again when a worker is lost
        self._followers: list[Callable[[], None]] = []
        self._gpus: GpuChannel | Literal[False] | None = None
        self._store: Any = None
        self._address = LOOPBACK  # at which the other workers reach this host
        self._hosts: list[str] = []  # of each worker
        if self.world > 1:
            self.pulse.enter(CONNECTING)
            self._store = connect_store(settings) if store is None else store
            if settings.run.elastic is not None and isinstance(self._store, LinkStore):
                self.members = Members(self._store, self.rank, self.world)
                self.members.form(self._connect, first=True)
            else:
                self._channel = self._open_channel()
            self.pulse.leave()

    # -- collectives ----------------------------------------------------------------------------------------------

    @again
    def all_reduce(self, tensor: torch.Tensor, what: str) -> None:
        """Sums `tensor` over the workers, in place."""
        if self.world == 1:
            return
        if (gpus := self._gpus_for(tensor)) is not None:
            with self.waiting(what, asks=True):
                gpus.all_reduce(tensor)
            return
        host, is_copy = summable(tensor)
        if self.members is not None and not is_copy:  # it may be summed again
            host, is_copy = host.clone(), True
        with self.waiting(what, asks=not self._channel.answers):
            self._channel.all_reduce(host.view(-1), what)
            if is_copy:
                copy_back(tensor, host)

    def allocate(self, numel: int, dtype: torch.dtype) -> Shared | None:
        """Shared memory for a bucket in host memory, which is summed in place; None if the channel has no shared
        memory. Every worker allocates the same buckets in the same order."""
        return self._channel.allocate(numel, dtype) if self.world > 1 else None

    def start_all_reduce(
        self, tensor: torch.Tensor, shared: Shared | None = None, *, key: int = 0, shapes: Sequence[Any] = ()
    ) -> Pending:
        """Starts an in-place sum of a gradient bucket; `finish` waits for the sum. Sums run in the order of their
        starts. `key` identifies the bucket, and `shapes` are the shapes of the gradients in the bucket."""
        if self.world == 1:  # the last one that is left
            return Pending(self.waiting, lambda: None)
        if (gpus := self._gpus_for(tensor)) is not None:
            return Pending(self.waiting, gpus.start(tensor))
        host, is_copy = (tensor, False) if shared is not None else summable(tensor)
        try:
            begun = self._channel.start(host.view(-1), shared, "gradients", key=key, shapes=shapes)
        except PacelineError as error:
            raise self.ending.carry(error) from None
        if shared is not None:
            return Pending(self.waiting, lambda: self._channel.finish(begun), begun)

        def finish() -> None:
            self._channel.finish(begun)
            if is_copy:
                copy_back(tensor, host)

        return Pending(self.waiting, finish)

    def compress(self, how: Compression) -> None:
        """Compresses gradients between hosts from now on. Every worker calls it, before its first backward."""
        if how == "none" or self.world == 1:
            return
        if isinstance(self._channel, HostsChannel):
            self._channel.compression = how
            self.pulse.notice(compressor(how).notice)
        else:
            self.pulse.notice(
                f"--compression {how} has no effect: gradients are compressed only between several hosts, without "
                "--backend gloo."
            )

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The all-reduce algorithms available between hosts."""
        return self._channel.algorithms

    def use_algorithm(self, name: str | None) -> None:
        """Sets the all-reduce algorithm for buckets between hosts; None: chosen by bucket size. Every worker calls
        it."""
        self._channel.algorithm = name

    def progress(self) -> None:
        """Advances started sums. Does not wait."""
        try:
            if self.world > 1:
                self._channel.progress()
        except PacelineError as error:
            raise self.ending.carry(error) from None

    @again
    def broadcast(self, tensor: torch.Tensor, what: str) -> None:
        """Gives every worker rank 0's values, in place."""
        if self.world == 1 or not tensor.numel():
            return
        if (gpus := self._gpus_for(tensor)) is not None and tensor.is_contiguous():
            with self.waiting(what, asks=True):
                gpus.broadcast(tensor.detach())
            return
        host, elastic = as_bytes(tensor), self.members is not None
        if elastic:  # another worker's tensor may be broadcast, if this one's owner is lost
            host = host.clone()
        with self.waiting(what, asks=not self._channel.answers):
            self._channel.broadcast(host, what)
        if elastic or tensor.device.type != "cpu" or not tensor.is_contiguous():  # else it is the tensor's own memory
            copy_back(tensor, host.view(tensor.dtype).view(tensor.shape))

    def gather_rows(self, rows: torch.Tensor, dim: int, sizes: Sequence[int], what: str) -> torch.Tensor:
        """The rows of all workers, concatenated along `dim` in rank order; `sizes[r]` is the number of rows of worker
        r."""
        if self.world == 1:
            return rows
        mine = rows.movedim(dim, 0).contiguous()
        if (gpus := self._gpus_for(rows)) is not None:
            with self.waiting(what, asks=True):
                out = gpus.gather(mine, sizes)
        else:
            host = torch.empty((sum(sizes), *mine.shape[1:]), dtype=mine.dtype, device="cpu")
            into = [as_bytes(part) for part in host.split(list(sizes))]
            with self.waiting(what, asks=not self._channel.answers):
                self._channel.all_gather(as_bytes(mine), into, what)
            out = host.to(rows.device)
        # Not a view: the script may change the result in place.
        return out.movedim(0, dim).clone(memory_format=torch.contiguous_format) if dim else out

    @again
    def gather_vectors(self, vector: torch.Tensor, what: str) -> torch.Tensor:
        """A matrix with one row per worker. `vector` is in host memory and has the same length on each worker."""
        if self.world == 1:
            return vector.unsqueeze(0)
        out = vector.new_empty((self.world, vector.numel()))
        with self.waiting(what, asks=not self._channel.answers):
            self._channel.all_gather(vector, list(out.unbind()), what)
        return out

    @again
    def gather_objects(self, value: Any, what: str) -> list[Any]:
        """A plain value of each worker, in rank order. `what` labels the exchange: workers at exchanges with different
        labels raise `PartedError`. See `plain`."""
        return [value] if self.world == 1 else post.gather(self, value, what)

    def along(self, name: str, members: Sequence[int]) -> Group:
        """The group of these workers, this worker among them, with their order as ranks. Workers of other groups of the
        same name call it with their own members."""
        if len(members) == self.world:
            return self
        settings = replace(self._settings, rank=members.index(self.rank), world=len(members))
        store = None if self._store is None else within(self._store, f"{name}/{members[0]}")
        part = Group(settings, pulse=self.pulse, watch=self.watch, store=store)
        part.timeline = self.timeline
        return part

    def here(self) -> Group:
        """The group of this host's workers, in the order of their ranks. Every worker calls it."""
        if self.is_one_host or self.members is not None:  # what a part of the workers share is lost with one of them
            return self
        own = self._hosts[self.rank]
        return self.along("here", [rank for rank, host in enumerate(self._hosts) if host == own])

    def post(self, name: str) -> Post:
        """Point-to-point messages between the workers of this group. Every worker calls it; waits for all."""
        store = self.store(name)
        if isinstance(self._channel, MemoryChannel):
            return through_memory(self.waiting, Mailbox(store, self.rank, self.world))
        return over_gloo(self.waiting, gloo_group(store, self.rank, self.world, address=self._address))

    @property
    def is_one_host(self) -> bool:
        """Whether all workers share the memory of one host."""
        return len(set(self._hosts)) < 2

    @property
    def is_private(self) -> bool:
        """Whether host data certainly comes from the run's own workers. False over Gloo, whose port is open to other
        accounts."""
        return self.world == 1 or isinstance(self._channel, MemoryChannel)

    def meet(self, name: str, space: int) -> Meeting:
        """A shared-memory meeting of `space` bytes, independent of the channel. Every worker calls it; waits for all.
        All workers must be on one host."""
        return Meeting(self.store(name), self.rank, self.world, space)

    def store(self, name: str) -> Any:
        """The part of the run's store below `name`."""
        return within(self._store, f"paceline/{name}")

    # -- joint work in which a worker may fail --------------------------------------------------------------------

    def agree(self, *, failed: bool = False) -> None:
        """Checks that all workers have finished the joint work. Raises `CalledOff` if another worker has failed. A
        failed worker calls it with `failed=True`, which answers the next collective of its peers, whichever it is."""
        if self.world == 1:
            return
        with self.waiting("the check for a failed worker"):
            self._channel.agree(failed=failed)
        self.off = failed

    def end_work(self) -> None:
        """`agree` at the end of joint work whose results every worker has, whole: a worker that is lost now changes
        none of them, and nothing is done again. In such work inside other work, that is done again."""
        while True:
            try:
                return self.agree()
            except Regrouping:
                if self.redone:
                    raise
                self.regroup()

    def begin_again(self) -> None:
        """Every worker calls it after work was called off: afterwards collectives work again."""
        self.off = False
        self._channel.begin_again()

    # -- workers that are lost --------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """How often the group was formed anew."""
        return 0 if self.members is None else self.members.generation

    def regroup(self) -> None:
        """Forms the group of the workers that are left; rank and number of workers change. Every one of them calls it;
        waits for all."""
        assert self.members is not None
        self.pulse.enter("the workers that are left")
        self.members.form(self._connect)
        self.pulse.leave()
        for follower in self._followers:
            follower()

    def follow(self, follower: Callable[[], None]) -> None:
        """Calls it on this worker each time that the group was formed anew; at once if it was already, since a worker
        may be lost before this one is set up."""
        self._followers.append(follower)
        if self.generation:
            follower()

    def _connect(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        if world > 1:
            self._channel = self._open_channel()

    # -- underneath -----------------------------------------------------------------------------------------------

    def _open_channel(self) -> Channel:
        """Shared memory on one host, a hierarchical channel on several hosts, or Gloo with `--backend gloo`."""
        store = within(self._store, f"paceline/{self.generation}" if self.generation else "paceline")
        store.set(f"host{self.rank}", host_of_this_process())
        hosts = self._hosts = [store.get(f"host{rank}").decode() for rank in range(self.world)]
        local = len(set(hosts)) == 1
        try:
            if local and self.backend != "gloo":
                return MemoryChannel(store, self.rank, self.world, elastic=self.members is not None)
            own = self._settings.address or address_towards(self._settings.store_host, self._settings.store_port)
            self._address = LOOPBACK if local else own
            if self.members is not None:
                return ElasticChannel(store, self.rank, self.world, address=own, members=self.members)
            if local or self.backend == "gloo":
                return GlooChannel(store, self.rank, self.world, address=self._address)
            return HostsChannel(store, self.rank, hosts, address=self._address)
        except RuntimeError as error:
            raise self._explain(error, "start") from error

    def _gpus_for(self, tensor: torch.Tensor) -> GpuChannel | None:
        """The channel between GPUs, created at the first CUDA tensor; None for a host tensor, and if workers share a
        GPU."""
        if not tensor.is_cuda or self.backend == "gloo" or self.members is not None:
            return None
        if self._gpus is None:
            own_gpu = count_gpus() >= self.local_world
            if self.backend == "nccl" or (own_gpu and dist.is_nccl_available()):
                self._gpus = over_nccl(self.store("gpus"), self.rank, self.world)
            else:
                self._gpus = False
                self.pulse.notice(
                    f"{self.local_world} workers share {count_gpus()} GPU(s): collectives go through the host."
                )
        return self._gpus or None

    @contextmanager
    def waiting(self, what: str, *, asks: bool = False) -> Iterator[None]:
        """Counts the time inside as exposed communication and shows the wait to the stall inspector. `asks`: the
        collective cannot carry a peer's failure, so the workers check for failures before the collective."""
        self.ending.check()
        if self.off:
            raise CalledOff
        if self.pulse.alone and self.pulse.alone == threading.get_ident():
            raise self.ending.carry(self._refusal_alone(what))
        self.pulse.enter(what)
        self.watch.enter(COMMUNICATION)
        try:
            if asks and self.guarded:
                with unseen_by_modes():  # a proof, which looks at what the model computes
                    self._channel.agree(failed=False)
            yield
        except CalledOff:
            self.off = True
            self.pulse.leave()
            raise
        except Regrouping:
            self.pulse.leave()
            if not (self.guarded or self.retries):
                raise self.ending.carry(lost_at(what)) from None
            raise
        except PacelineError as error:
            raise self.ending.carry(error) from None
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not from_backend(error):
                raise
            raise self.ending.carry(self._explain(error, what)) from error
        finally:
            self.watch.leave()
        self.pulse.leave()

    def _refusal_alone(self, what: str) -> PacelineError:
        return ScriptError(
            f"A dataset uses a model whose parts are on several workers ({what}), but each worker loads samples of its "
            "own.",
            advice="Let the dataset hold the model in an attribute, or use --strategy mirrored.",
        )

    def _explain(self, error: RuntimeError, what: str) -> PacelineError:
        text = str(error)
        if says_lost(text):
            return PeerLostError(f"Worker {self.rank} lost a peer while waiting for {what}: {text.splitlines()[0]}")
        return PartedError(
            f"The workers entered different collectives; worker {self.rank} was at: {what} ({text.splitlines()[0]}).",
            advice=post.BRANCH,
        )
