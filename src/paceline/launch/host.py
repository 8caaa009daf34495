"""A host of a run, as the controller sees it: what happens there, and what can be asked of it.

`LocalHost` is this host. `cluster/remote.py` is a host that an agent looks after, which is itself a `LocalHost` with a
connection to the controller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from paceline.errors import LaunchError
from paceline.launch import messages, processes
from paceline.launch.control import ControlChannel
from paceline.launch.events import Output
from paceline.launch.zygote.handle import Patience, Zygote

FromWorker: TypeAlias = messages.FromWorkers
FromZygote: TypeAlias = messages.Ready | messages.Forked | messages.Ended | messages.Swept
Happened: TypeAlias = FromZygote | Output | tuple[int, FromWorker]


class HostsGoneError(LaunchError):
    """Hosts of the run are gone, or cannot be used: a run with a saved state may go on without them."""

    names: tuple[str, ...] = ()


class HostLostError(HostsGoneError):
    """A host of the run is gone, with all of its workers. `why` is a clause."""

    def __init__(self, name: str, ranks: range, why: str) -> None:
        who = f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {ranks[0]} to {ranks[-1]}"
        super().__init__(
            f"The host {name}, with {who}, is lost: {why}.",
            advice="Look whether the host runs and can be reached, then start the run again.",
        )
        self.names, self.why = (name,), why


class Host(Protocol):
    """The workers of a run on one host."""

    @property
    def name(self) -> str: ...

    @property
    def ranks(self) -> Sequence[int]: ...

    @property
    def swept(self) -> bool:
        """Whether no process of the run is left there."""
        ...

    def sources(self) -> Sequence[Any]:
        """What to poll."""
        ...

    def take(self, ready: Mapping[Any, int]) -> Iterator[Happened]:
        """What has happened; never waits. Raises LaunchError if the host can no longer be used."""
        ...

    def spawn(self) -> None:
        """Forks the host's workers."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal to all workers that still run, also if they are frozen."""
        ...

    def ask_where(self, rank: int) -> bool:
        """Asks a worker for its stack; False if it cannot be asked yet."""
        ...

    def state_of(self, pid: int) -> str:
        """The kernel's letter for the state of a worker's process; empty if it is not known."""
        ...

    def look(self, now: float) -> str:
        """A warning about the host itself, for the terminal. Raises LaunchError if it has to be given up."""
        ...

    def is_over(self) -> bool:
        """Whether nothing more will come from this host."""
        ...

    def destroy(self) -> None:
        """Kills whatever is left there: its zygote no longer answers."""
        ...


class LocalHost:
    """The workers on this host: their zygote, their control channel, and the pipes of rank 0's output."""

    def __init__(
        self,
        name: str,
        ranks: Sequence[int],
        *,
        zygote: Zygote,
        channel: ControlChannel,
        pipes: dict[int, tuple[int, Literal["stdout", "stderr"]]],
        warning: float = 0.0,
        abort: float | None = None,
    ) -> None:
        """`pipes`: of which rank each one is the output. `warning` and `abort`: how long the zygote may be frozen."""
        self.name, self.ranks, self.swept = name, ranks, True
        self.zygote, self._channel, self._pipes = zygote, channel, pipes
        self._patience = Patience(zygote, warning, abort)
        self._spawn: tuple[messages.Spawn, list[int]] | None = None
        self._gone = False

    def prepare(self, spawn: messages.Spawn, descriptors: list[int]) -> None:
        """Sets what `spawn` sends to the zygote."""
        self._spawn = spawn, descriptors

    def sources(self) -> Sequence[Any]:
        return (*(() if self._gone else (self.zygote.fileno(),)), self._channel.socket, *self._pipes)

    def take(self, ready: Mapping[Any, int]) -> Iterator[Happened]:
        if self._channel.socket in ready:
            yield from self._channel.receive()
        if self.zygote.fileno() in ready and not self._gone:
            message = self.zygote.receive()
            self.swept = self.swept or isinstance(message, messages.Swept)
            yield message
        for pipe in [pipe for pipe in self._pipes if pipe in ready]:
            if data := os.read(pipe, 65536):
                yield Output(*self._pipes[pipe], data)
            else:
                os.close(pipe)
                del self._pipes[pipe]

    def spawn(self) -> None:
        assert self._spawn is not None
        self.zygote.send(*self._spawn)
        self.swept = False

    def signal(self, number: int) -> None:
        self.zygote.wake()
        self.zygote.send(messages.Signal(number))

    def ask_where(self, rank: int) -> bool:
        return self._channel.ask_where(rank)

    def state_of(self, pid: int) -> str:
        return processes.state_of(pid)

    def look(self, now: float) -> str:
        return self._patience.look(now)

    def is_over(self) -> bool:
        return self.swept and not self._pipes

    def destroy(self) -> None:
        self.zygote.destroy()
        self.swept = self._gone = True

    def close(self) -> None:
        """Closes the pipes that are still open."""
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes.clear()
