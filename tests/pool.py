"""Workers for tests: forked once, connected once by a real `Group`, and used by many tests.

    results = pool(3).run(function, *args)     # function(group, *args) on each worker; results in the order of ranks

`function` is defined at the top of a test module and what it takes and returns is pickled. An exception of a worker is
raised here, with the worker's own traceback as a note. A pool that saw one is not used again: its workers may have
stopped in the middle of a collective.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # every optimizer imports it: once here, not once a worker

from paceline.comm.group import Group
from paceline.errors import PeerLostError
from paceline.settings import RunSettings, WorkerSettings
from paceline.wire.link import LinkSocket
from paceline.wire.store import LinkServer

TIME_OUT = 120.0  # seconds for one run: a fault, never a slow machine
GRACE = 2.0  # seconds for the others to end, after one has failed
PDEATHSIG = 1


class Pool:
    """`world` workers. Forks at once; the workers connect at the first run."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._workers: dict[int, tuple[int, Connection]] = {}  # rank → pid, our end of its pipe
        self._links = LinkServer(world)
        for rank in range(world):
            ours, its = Pipe()
            pid = os.fork()
            if pid == 0:
                _become_worker(rank, world, self._links.ends[rank].fileno(), its)
            its.close()
            self._workers[rank] = pid, ours
        self._links.let_go()
        self._links.start()

    @property
    def pids(self) -> set[int]:
        return {pid for pid, _ in self._workers.values()}

    @property
    def usable(self) -> bool:
        return bool(self._workers)

    def run(self, function: Callable[..., Any], *args: Any, time_out: float = TIME_OUT) -> list[Any]:
        """`function(group, *args)` on every worker."""
        return self.run_each(function, [args] * self.world, time_out=time_out)

    def run_each(self, function: Callable[..., Any], args: list[tuple[Any, ...]], *, time_out: float = TIME_OUT) -> Any:
        """The same with other arguments for each rank."""
        if not self.usable:
            raise RuntimeError("An earlier failure has ended the workers of this pool.")
        for rank, (_, pipe) in self._workers.items():
            pipe.send_bytes(pickle.dumps((function, args[rank])))
        answers, errors = self._receive(time_out)
        if errors or len(answers) < len(self._workers):
            missing = sorted(set(self._workers) - set(answers) - set(errors))
            self.close(show_stacks=bool(missing) and not errors)
            if not errors:
                raise TimeoutError(f"Workers {missing} of {self.world} did not answer within {time_out:g} s.")
            # A lost peer is a consequence, never the cause.
            rank = min(errors, key=lambda rank: (isinstance(errors[rank], PeerLostError), rank))
            raise errors[rank]
        return [answers[rank] for rank in self._workers]

    def _receive(self, time_out: float, grace: float = GRACE) -> tuple[dict[int, Any], dict[int, BaseException]]:
        answers: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        waiting = {pipe.fileno(): (rank, pipe) for rank, (_, pipe) in self._workers.items()}
        end = time.monotonic() + time_out
        while waiting and (left := end - time.monotonic()) > 0:
            for fileno in select.select(list(waiting), [], [], left)[0]:
                rank, pipe = waiting.pop(fileno)
                try:
                    well, value = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionResetError):
                    well, value = False, RuntimeError(f"Worker {rank} of {self.world} died.")
                if well:
                    answers[rank] = value
                else:
                    errors[rank] = value
                    end = min(end, time.monotonic() + grace)
        return answers, errors

    def kill(self, rank: int) -> None:
        """Ends one worker as the kernel would. The others are not told; only they run what comes next."""
        pid, pipe = self._workers.pop(rank)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        pipe.close()

    def close(self, *, show_stacks: bool = False) -> None:
        """Ends all workers."""
        if show_stacks:
            for pid in self.pids:
                os.kill(pid, signal.SIGUSR1)
            time.sleep(0.5)  # for faulthandler to write them to standard error; nothing depends on it
        for pid, pipe in self._workers.values():
            pipe.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self._workers:
            self._links.close()
        self._workers.clear()


class Pools:
    """One pool for each number of workers (and purpose, where they are changed for good), made when first asked for."""

    def __init__(self) -> None:
        self._pools: dict[tuple[int, str], Pool] = {}

    def __call__(self, world: int, purpose: str = "") -> Pool:
        pool = self._pools.get((world, purpose))
        if pool is None or not pool.usable:
            pool = self._pools[world, purpose] = Pool(world)
        return pool

    @property
    def pids(self) -> set[int]:
        return {pid for pool in self._pools.values() for pid in pool.pids}

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


@contextmanager
def alone(world: int) -> Iterator[Pool]:
    """Workers of one test's own, for what changes a process for good."""
    pool = Pool(world)
    try:
        yield pool
    finally:
        pool.close()


def _become_worker(rank: int, world: int, link: int, pipe: Connection) -> None:
    try:
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.register(signal.SIGUSR1, all_threads=False)
        gc.freeze()
        _let_go_of_others({0, 1, 2, pipe.fileno(), link})
        torch.set_num_threads(1)
        group: Group | None = None
        while True:
            function, args = pickle.loads(pipe.recv_bytes())
            try:
                group = group or _connect(rank, world, link)
                answer = pickle.dumps((True, function(group, *args)))
            except BaseException as error:
                answer = _failed(rank, error)
            pipe.send_bytes(answer)
    finally:
        os._exit(1)  # the pool is closed, or the parent is gone


def _let_go_of_others(keep: set[int]) -> None:
    """Files that were open in the parent: a peer that waits for their end would wait for us, too. Pointed elsewhere
    and not closed, so that no number is given out twice."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - keep - {nothing}:
        try:
            os.fstat(descriptor)
        except OSError:
            continue  # of the listing itself
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _connect(rank: int, world: int, link: int) -> Group:
    LinkSocket(link).use()
    return Group(
        WorkerSettings(
            run=RunSettings(script="", workers=world),
            record="",
            rank=rank,
            world=world,
            local_rank=rank,
            local_world=world,
        )
    )


def _failed(rank: int, error: BaseException) -> bytes:
    text = f"worker {rank}:\n" + "".join(traceback.format_exception(error))
    error.__cause__ = error.__context__ = error.__traceback__ = None
    error.add_note(text)
    try:
        raw = pickle.dumps((False, error))
        pickle.loads(raw)
    except Exception:
        raw = pickle.dumps((False, RuntimeError(text)))
    return raw
