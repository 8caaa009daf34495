"""Who has not the run's keys is refused and logged; what makes no sense is counted, and ends no server."""

from __future__ import annotations

import random
import socket
import time
from pathlib import Path
from typing import Any

import stranger
import torch
import zmq
from server_team import Team, team

from paceline.strategies.server import messages as say
from paceline.strategies.server.client import connect
from paceline.strategies.server.exchange import Exchange
from paceline.strategies.server.partition import Share
from paceline.strategies.server.servers import Addresses
from paceline.wire.channel import Access, Keys

LET_IN = 30  # silent connections, at least
SILENT = 200  # connections, of which few are let in


def works(it: Team) -> None:
    """An ordinary worker's step."""
    client = it.client()
    parameter = torch.nn.Parameter(torch.zeros(3))
    exchange = Exchange(client, 0, torch.optim.SGD([parameter], lr=1.0))
    before = parameter.clone()
    parameter.grad = torch.ones(3)
    exchange.step()
    assert (before - parameter).tolist() == [1.0] * 3
    client.close()


def test_strangers_are_refused_and_logged(tmp_path: Path) -> None:
    with team(tmp_path, network="127.0.0.1") as it, zmq.Context() as context:
        address, beyond = it.addresses.servers[0]
        hello = [say.encode(say.Hello(1, 1, 0, 1, ""))]
        guessing = connect(context, address, Access(it.access.key, "guessed"))
        guessing.send(hello)
        it.until_logged("refused 1 connection of processes that do not have the run's keys")
        of_another_run = connect(context, beyond, Keys.make().access)
        of_another_run.send(hello)
        it.until_logged("of processes that do not have the run's keys", times=2)
        plain: Any = context.socket(zmq.DEALER)
        plain.connect(address)
        plain.send(it.access.token.encode() + hello[0])
        assert not guessing.socket.poll(0)
        assert not plain.poll(0)
        for stranger in (guessing, of_another_run, plain):
            stranger.close(linger=0)
        works(it)
    (report,) = it.reports()
    assert report.refused >= 2
    assert report.updates == 1


def test_strangers_take_neither_memory_nor_descriptors_of_a_server(tmp_path: Path) -> None:
    with team(tmp_path, network="127.0.0.1") as it:
        port = int(it.addresses.servers[0][1].rpartition(":")[2])
        held = Path(f"/proc/{it.servers.processes()[0]}/fd")
        before = len(list(held.iterdir()))
        assert stranger.pour(port) < stranger.ENOUGH
        it.until_logged("refused 1 connection of processes that do not have the run's keys")
        silent = stranger.come(port, LET_IN + 10)
        while len(list(held.iterdir())) < before + LET_IN:
            time.sleep(0.01)
        silent += stranger.come(port, SILENT)
        works(it)
        assert len(list(held.iterdir())) < before + SILENT
        for each in silent:
            each.close()
    (report,) = it.reports()
    assert report.refused >= 1


def test_numbers_of_many_frames_arrive_at_a_server_on_another_host(tmp_path: Path) -> None:
    with team(tmp_path, network="127.0.0.1") as it:
        it.addresses = Addresses("another host", it.addresses.servers)
        client = it.client()
        initial = torch.arange(200_000, dtype=torch.float64)
        parameter = torch.nn.Parameter(initial.clone())
        exchange = Exchange(client, 0, torch.optim.SGD([parameter], lr=1.0))
        parameter.grad = initial / 7
        exchange.step()
        assert torch.equal(parameter.detach(), initial - initial / 7)
        client.close()


def test_garbage_on_the_wire_ends_no_server(tmp_path: Path) -> None:
    chance = random.Random(3)
    with team(tmp_path, network="127.0.0.1") as it:
        host, port = it.addresses.servers[0][1].removeprefix("tcp://").split(":")
        for length in (1, 10, 64, 1000, 70000):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(chance.randbytes(length))
        works(it)


def test_garbage_from_a_worker_is_counted_and_ends_no_server(tmp_path: Path) -> None:
    chance = random.Random(4)
    with team(tmp_path) as it, zmq.Context() as context:
        works(it)
        sender = connect(context, it.addresses.servers[0][0], it.access)
        worker = 5
        sender.send([say.encode(say.Hello(1, worker, 0, 1, ""))])
        sent = 0
        good = say.encode(say.Push(1, worker, 0, 0, 0, 0, 1.0, (), ({"lr": 1.0},)))
        for frames in (
            [b""],
            [b"\xff" * 40],
            [good[:-3]],
            [b"a", b"b", b"c"],
            [say.encode(["push", 1])],
            *([chance.randbytes(chance.randint(1, 300))] for _ in range(50)),
        ):
            sender.send(frames)
            sent += 1
        spec = torch_like_spec()
        wrong = say.Open(2, worker, 0, spec[0], Share(0, 0, 1 << 40, ()), spec[1], None, 0, None, 0)
        sender.send(say.framed(wrong, b"1234"))
        sender.send([say.encode(say.Push(3, worker, 9, 0, 0, 0, 1.0, (), ()))])
        answers = []
        while not any(getattr(answer, "request", 0) == 3 for answer in answers):
            assert sender.socket.poll(60_000)
            answers += [say.decode_answer(frames[0]) for frames in sender.receive()]
        assert any(isinstance(answer, say.Refused) for answer in answers)
        sender.close()
        works(it)
    (report,) = it.reports()
    assert report.malformed >= sent + 1
    assert report.updates == 2
    assert "ignored a malformed message" in it.log()


def torch_like_spec() -> Any:
    from paceline.strategies.server.optimizers import spec_of
    from paceline.strategies.server.partition import TensorSpec

    spec, tensors = spec_of(torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=1.0))
    return (TensorSpec.of("other", tensors[0]),), spec


def test_a_class_that_is_no_optimizer_is_never_made(tmp_path: Path) -> None:
    with team(tmp_path) as it, zmq.Context() as context:
        sender = connect(context, it.addresses.servers[0][0], it.access)
        sender.send([say.encode(say.Hello(1, 5, 0, 1, ""))])
        tensors, spec = torch_like_spec()
        for path in ("subprocess.Popen", "torch.optim.os.system", "torch.optim.lr_scheduler.StepLR"):
            asked = type(spec)(path, spec.groups, spec.options)
            share = Share(0, 0, 0, ())
            sender.send(say.framed(say.Open(7, 5, 0, tensors, share, asked, None, 0, None, 0), b""))
        refused = 0
        while refused < 3:
            assert sender.socket.poll(60_000)
            refused += sum(isinstance(say.decode_answer(frames[0]), say.Refused) for frames in sender.receive())
        sender.close()
        works(it)
