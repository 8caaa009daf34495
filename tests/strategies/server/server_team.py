"""Servers and workers of a test: forks of the test's process, which has imported torch."""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.record.servers import ServerReport, read_reports
from paceline.strategies.server.client import Client
from paceline.strategies.server.config import ServerConfig
from paceline.strategies.server.exchange import Exchange
from paceline.strategies.server.servers import Addresses, Servers
from paceline.wire.channel import Access, Keys

TIME_OUT = 90.0  # seconds: a fault, never a slow machine


class Worker:
    """A forked process that runs `function(team, rank, say, *args)`. `say(value)` sends a value to the test."""

    def __init__(self, team: Team, rank: int, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.rank = rank
        self._reads, writes = os.pipe()
        self._rest, self.said = b"", list[Any]()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                function(team, rank, lambda value: os.write(writes, json.dumps(value).encode() + b"\n"), *args)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writes)

    def until(self, condition: Callable[[list[Any]], Any]) -> list[Any]:
        """Waits until what the worker has said fulfils a condition."""
        by = time.monotonic() + TIME_OUT
        while not condition(self.said):
            assert select.select([self._reads], [], [], max(0.0, by - time.monotonic()))[0], "the worker is silent"
            data = os.read(self._reads, 65536)
            assert data, f"worker {self.rank} has ended"
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]
        return self.said

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reads)

    def join(self) -> list[Any]:
        """Waits for its end; returns what it said."""
        while data := os.read(self._reads, 65536):
            *lines, self._rest = (self._rest + data).split(b"\n")
            self.said += [json.loads(line) for line in lines]
        assert os.waitpid(self.pid, 0)[1] == 0, f"worker {self.rank} failed"
        os.close(self._reads)
        return self.said


class Team:
    """A run's servers, the access to them, and the workers that a test starts."""

    def __init__(self, folder: Path, servers: Servers, addresses: Addresses, access: Access) -> None:
        self.folder, self.servers, self.addresses, self.access = folder, servers, addresses, access
        self.notices: list[str] = []

    def client(self, rank: int = 0) -> Client:
        return Client(self.addresses, self.access, rank=rank, notice=self.notices.append)

    def start(self, rank: int, function: Callable[..., None], *args: Any) -> Worker:
        return Worker(self, rank, function, args)

    def log(self, server: int = 0) -> str:
        return (self.folder / f"log.server{server}.txt").read_text()

    def reports(self) -> list[ServerReport]:
        """After the servers have ended."""
        return read_reports(self.folder)

    def until_logged(self, text: str, server: int = 0, *, times: int = 1) -> None:
        by = time.monotonic() + TIME_OUT
        while self.log(server).count(text) < times:
            assert time.monotonic() < by, f"{text!r} is not in the log:\n{self.log(server)}"
            time.sleep(0.01)


@contextmanager
def team(folder: Path, **settings: Any) -> Iterator[Team]:
    """Servers that end with the block; reports and logs are in the folder."""
    keys = Keys.make()
    with Servers(ServerConfig(keys=keys, folder=str(folder), record=str(folder), **settings), fork=True) as servers:
        yield Team(folder, servers, servers.addresses(), keys.access)


def model(seed: int = 0, *, width: int = 7) -> torch.nn.Module:
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))
    return made.double()


def batches(steps: int, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 5, dtype=torch.float64, generator=generator) for _ in range(steps)]


def loss_of(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (net(batch).squeeze(1) - batch.sum(1)).square().mean()


def exchange_of(client: Client, net: torch.nn.Module, **options: Any) -> Exchange:
    optimizer = torch.optim.SGD(net.parameters(), **{"lr": 0.05, **options})
    return Exchange(client, 0, optimizer)
