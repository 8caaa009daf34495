"""Workers and servers are killed at any moment: nothing is applied twice, and the others go on."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from server_team import Team, team

from paceline.errors import RecordError
from paceline.strategies.server import shard_file
from paceline.strategies.server.client import Client
from paceline.strategies.server.exchange import Exchange

ROWS = 32  # server 0 of two holds the upper half


def counting(client: Client, workers: int) -> Exchange:
    """Parameters that count: each push of worker r subtracts 1 from every number in column r."""
    parameter = torch.nn.Parameter(torch.zeros(ROWS, workers, dtype=torch.float64))
    exchange = Exchange(client, 0, torch.optim.SGD([parameter], lr=1.0))
    parameter.grad = torch.zeros(ROWS, workers, dtype=torch.float64)
    parameter.grad[:, client.rank] = 1
    return exchange


def push(team: Team, rank: int, say: Callable[[Any], Any], steps: int, workers: int, resting: float = 0.0) -> None:
    client = team.client(rank)
    exchange = counting(client, workers)
    say("begun")
    for step in range(steps):
        exchange.step()
        say(step + 1)
        time.sleep(resting)
    if team.notices:
        say(team.notices)
    client.close()


def final(it: Team, workers: int) -> torch.Tensor:
    """The parameters at the end, as an additional worker sees them."""
    client = it.client(0)
    exchange = counting(client, workers)
    values = -exchange.parameters[0].clone()
    client.close()
    return values


def kill_a_worker(folder: Path, *, staleness: int | None, after: int, delay: float) -> None:
    folder.mkdir(exist_ok=True)
    steps, workers = 30, 3
    with team(folder, servers=2, staleness=staleness, workers=workers) as it:
        endless = 1_000_000  # worker 2 must not end by itself before it is killed
        started = [it.start(rank, push, endless if rank == 2 else steps, workers) for rank in range(workers)]
        started[2].until(lambda said: len(said) > after)
        time.sleep(delay)
        os.kill(started[2].pid, signal.SIGKILL)
        for worker in started[:2]:
            assert worker.join()[-1] == steps
        with pytest.raises(AssertionError, match="failed"):
            started[2].join()
        done = started[2].said[-1]
        values = final(it, workers)
    for row in values.tolist():
        if staleness == 0:  # means: one update a round
            assert sum(row) >= steps - 1e-9
        else:
            assert row[:2] == [steps, steps]
            assert done <= row[2] <= done + 1
    for report, part in zip(it.reports(), (values[0], values[-1]), strict=True):
        assert report.updates == pytest.approx(part.sum())
    assert "worker 2 has ended; the others go on" in it.log()


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_a_killed_worker_disturbs_nobody_and_no_push_counts_twice(tmp_path: Path, staleness: int | None) -> None:
    kill_a_worker(tmp_path, staleness=staleness, after=5, delay=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 2, None])
def test_workers_killed_at_twenty_moments(tmp_path: Path, staleness: int | None) -> None:
    chance = random.Random(1)
    for number in range(20):
        after, delay = chance.randint(1, 25), chance.random() * 0.005
        kill_a_worker(tmp_path / str(number), staleness=staleness, after=after, delay=delay)


def kill_a_server(folder: Path, *, after: int, delay: float, staleness: int | None = None) -> float:
    """Returns the seconds until a worker's next step was done."""
    folder.mkdir(exist_ok=True)
    steps, workers = 200, 2
    with team(folder, servers=2, staleness=staleness, workers=workers, write_every=0.2) as it:
        started = [it.start(rank, push, steps, workers, 0.002) for rank in range(workers)]
        started[0].until(lambda said: len(said) > after)
        time.sleep(delay)
        before = it.servers.processes()[0]
        os.kill(before, signal.SIGKILL)
        killed = time.monotonic()
        it.until_logged("was restarted")
        counted = len(started[0].said) + 20  # what is in the pipe may be of before
        started[0].until(lambda said: len(said) > min(counted, steps))
        away = time.monotonic() - killed
        said = [worker.join() for worker in started]
        values = final(it, workers)
        assert it.servers.processes()[0] != before
    (told,) = [text for text in said[0][-1] if "Server 0 was restarted" in text]
    found = re.search(r"goes on from update (\d+): the last (\d+) updates? since its last write", told)
    assert found is not None
    lost = int(found[2])
    upper, lower = values[0].sum().item(), values[-1].sum().item()
    each = 1 if staleness == 0 else workers
    assert lower == pytest.approx(steps * each)  # the other server missed nothing, and did nothing twice
    assert upper <= steps * each + 1e-9
    assert upper >= steps * each - lost - 1e-9
    reports = it.reports()
    assert reports[0].updates == pytest.approx(upper)
    assert (reports[0].starts, reports[0].lost) == (2, lost)
    assert reports[1].starts == 1
    return away


@pytest.mark.parametrize("staleness", [None, pytest.param(0, marks=pytest.mark.slow)])
def test_a_killed_server_comes_back_and_says_what_it_lost(tmp_path: Path, staleness: int | None) -> None:
    kill_a_server(tmp_path, after=60, delay=0.0, staleness=staleness)


@pytest.mark.slow
def test_servers_killed_at_twenty_moments_are_back_within_ten_seconds(tmp_path: Path) -> None:
    chance = random.Random(2)
    for number in range(20):
        away = kill_a_server(
            tmp_path / str(number),
            after=chance.randint(1, 150),
            delay=chance.random() * 0.02,
            staleness=(None, 0, 4)[number % 3],
        )
        assert away < 10


def test_a_worker_may_join_at_any_time(tmp_path: Path) -> None:
    with team(tmp_path, staleness=2, workers=1) as it:
        first = it.start(0, push, 20, 2)
        first.until(lambda said: len(said) > 5)
        second = it.start(1, push, 10, 2)
        first.join()
        second.join()
        assert final(it, 2)[0].tolist() == [20, 10]


def test_a_push_that_is_sent_twice_is_applied_once(tmp_path: Path) -> None:
    with team(tmp_path) as it:
        client = it.client()
        exchange = counting(client, 1)
        exchange.push()
        for server, pending in exchange._asked.items():
            client._send(server, pending)
        exchange.wait()
        exchange.pull()
        assert exchange.parameters[0][0].tolist() == [-1]
        client.close()
    assert it.reports()[0].duplicates == 1


def test_a_damaged_shard_is_refused_by_name(tmp_path: Path) -> None:
    with team(tmp_path) as it:
        client = it.client()
        counting(client, 1).step()
        client.close()
    path = tmp_path / "server0.shard"
    contents, (shard,) = shard_file.read(path)
    assert (contents.updates, shard.version, shard.parameters[0].sum()) == (1, 1, -ROWS)
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"server0\.shard.*checksum is wrong"):
        shard_file.read(path)
    path.write_bytes(data[:50])
    with pytest.raises(RecordError, match=r"server0\.shard"):
        shard_file.read(path)
