"""What servers compute: a synchronous server equals one large batch; every optimizer equals itself in one process."""

from __future__ import annotations

import copy
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from server_team import Team, batches, exchange_of, loss_of, model, team

from paceline.errors import ScriptError
from paceline.strategies.server.exchange import Exchange


def flat(net: torch.nn.Module) -> list[float]:
    return torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()]).tolist()


def train(team: Team, rank: int, say: Callable[[Any], Any], data: list[torch.Tensor | None], options: Any) -> None:
    """One worker: a step for each batch; none where there is no batch."""
    client, net = team.client(rank), model()
    exchange = exchange_of(client, net, **options)
    for batch in data:
        net.zero_grad()
        if batch is None:
            exchange.skip()
            continue
        exchange.wait()
        loss_of(net, batch).backward()
        exchange.push(weight=len(batch))
    exchange.wait()
    say(flat(net))
    client.close()


@pytest.mark.parametrize("servers", [1, 2])
def test_a_synchronous_server_equals_one_large_batch(tmp_path: Path, servers: int) -> None:
    """Also where the last batch is short, and a worker has none."""
    data, workers, options = batches(8, size=4), 3, {"momentum": 0.9, "weight_decay": 0.01}
    data.append(batches(1, size=2)[0])
    reference = model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, **options)
    steps = [data[at : at + workers] for at in range(0, len(data), workers)]
    steps[-1] = steps[-1][:2] if len(steps[-1]) == 3 else steps[-1]
    for step in steps:
        optimizer.zero_grad()
        loss_of(reference, torch.cat(step)).backward()
        optimizer.step()
    with team(tmp_path, servers=servers, staleness=0, workers=workers) as it:
        own = [[step[rank] if rank < len(step) else None for step in steps] for rank in range(workers)]
        started = [it.start(rank, train, own[rank], options) for rank in range(workers)]
        found = [worker.join()[-1] for worker in started]
    for values in found:
        torch.testing.assert_close(torch.tensor(values), torch.tensor(flat(reference)), rtol=1e-12, atol=1e-14)
    assert [report.staleness for report in it.reports()] == [{0: len(steps)}] * servers


@pytest.mark.parametrize(
    ("make", "cut"),
    [
        (lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.01}, {"params": p[1:]}], weight_decay=0.1), True),
        (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True), True),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True), True),
        (lambda p: torch.optim.Adafactor(p, lr=0.1), False),
    ],
)
def test_an_optimizer_on_servers_equals_itself_in_one_process(tmp_path: Path, make: Any, cut: bool) -> None:
    """With a schedule of the script's, parameters without a gradient, and the state brought back."""
    net = model(width=33)
    other = copy.deepcopy(net)
    ours, theirs = (make(list(each.parameters())) for each in (net, other))
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, gamma=0.5) for each in (ours, theirs)]
    with team(tmp_path, servers=2) as it:
        client = it.client()
        exchange = Exchange(client, 0, ours)
        pieces = [p for share in exchange.partition.shares for p in share.pieces]
        assert (len(pieces) > len(exchange.tensors)) == cut
        for number, batch in enumerate(batches(6)):
            for each in (net, other):
                each.zero_grad()
                loss_of(each, batch).backward()
                if number % 2:
                    each[0].bias.grad = None  # type: ignore[index]
            exchange.step()
            theirs.step()
            for schedule in schedules:
                schedule.optimizer._opt_called = True  # type: ignore[attr-defined]
                schedule.step()
        torch.testing.assert_close(torch.tensor(flat(net)), torch.tensor(flat(other)), rtol=1e-12, atol=1e-14)
        state = exchange.state()
        for number, parameter in enumerate(other.parameters()):
            for name, value in theirs.state[parameter].items():
                torch.testing.assert_close(torch.as_tensor(state[number][name]), torch.as_tensor(value))
        client.close()


def test_frames_carry_the_numbers_where_there_is_no_shared_memory(tmp_path: Path) -> None:
    reference = model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)
    with team(tmp_path, servers=2, network="127.0.0.1") as it:
        elsewhere = it.addresses.__class__("another host", it.addresses.servers)
        assert all(address.startswith("tcp://127.0.0.1:") for _, address in elsewhere.servers)
        it.addresses = elsewhere
        client, net = it.client(), model()
        exchange = exchange_of(client, net)
        for batch in batches(3):
            for each in (net, reference):
                each.zero_grad()
                loss_of(each, batch).backward()
            exchange.step()
            optimizer.step()
        client.close()
    assert flat(net) == flat(reference)


def race(team: Team, rank: int, say: Callable[[Any], Any], begun: mmap.mmap, steps: int, workers: int) -> None:
    """Says by how many steps this worker was ahead of the slowest whenever it might go on."""
    client, net = team.client(rank), model()
    exchange = exchange_of(client, net)
    data = batches(2, size=2000 if rank == 0 else 2)  # worker 0 computes longer
    ahead = []
    for step in range(1, steps + 1):
        struct.pack_into("<q", begun, 8 * rank, step)
        net.zero_grad()
        loss_of(net, data[step % 2]).backward()
        exchange.step()
        others = struct.unpack_from(f"<{workers}q", begun, 0)
        ahead.append(step - min(others))
    struct.pack_into("<q", begun, 8 * rank, 1 << 40)
    say(max(ahead))
    client.close()


def test_no_worker_is_further_ahead_than_the_bound(tmp_path: Path) -> None:
    workers, begun = 3, mmap.mmap(-1, 4096)
    with team(tmp_path, staleness=2, workers=workers) as it:
        started = [it.start(rank, race, begun, 40, workers) for rank in range(workers)]
        ahead = [worker.join()[-1] for worker in started]
    assert max(ahead) <= 2
    (report,) = it.reports()
    assert sum(report.staleness.values()) == report.updates == 40 * workers
    assert max(report.staleness) <= (workers - 1) * (2 * 2 + 1)


def test_the_learning_rate_falls_with_staleness_where_asked(tmp_path: Path) -> None:
    with team(tmp_path, workers=2, correction="rate") as it:
        clients = [it.client(rank) for rank in range(2)]
        exchanges = [Exchange(c, 0, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=1.0)) for c in clients]
        for exchange in exchanges:
            (parameter,) = exchange.optimizer.param_groups[0]["params"]
            parameter.grad = torch.ones(3)
        for _ in range(4):
            exchanges[0].step()
        exchanges[1].step()  # four updates behind
        assert exchanges[1].staleness == 4
        assert exchanges[1].parameters[0].tolist() == [-4.25] * 3
        for client in clients:
            client.close()
    assert it.reports()[0].staleness == {0: 4, 4: 1}


def test_late_pushes_of_backup_workers_are_dropped_and_counted(tmp_path: Path) -> None:
    with team(tmp_path, staleness=0, workers=3, backup=1) as it:
        clients = [it.client(rank) for rank in range(3)]
        exchanges = [Exchange(c, 0, torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)) for c in clients]
        for rank, exchange in enumerate(exchanges):
            exchange.optimizer.param_groups[0]["params"][0].grad = torch.full((2,), float(rank + 1))
        exchanges[0].push()
        exchanges[1].push()
        exchanges[0].wait()
        exchanges[1].wait()
        exchanges[2].step()
        assert all(exchange.parameters[0].tolist() == [-1.5] * 2 for exchange in exchanges)
        assert [exchange.clock for exchange in exchanges] == [1] * 3
        for client in clients:
            client.close()
    assert it.reports()[0].dropped == 1


class Own(torch.optim.SGD):
    pass


def test_optimizers_that_servers_do_not_know_are_refused(tmp_path: Path) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(3))]
    with team(tmp_path) as it:
        client = it.client()
        with pytest.raises(ScriptError, match="Own cannot run on a parameter server") as caught:
            Exchange(client, 0, Own(parameters))
        assert "--strategy mirrored" in caught.value.advice
        with pytest.raises(ScriptError, match="LBFGS evaluates the loss several times"):
            Exchange(client, 0, torch.optim.LBFGS(parameters))
        client.close()


def test_an_optimizers_state_goes_to_the_servers_and_comes_back(tmp_path: Path) -> None:
    """Also of a tensor in another memory format, and cut between servers."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 3, 5, 5, dtype=torch.float64).to(memory_format=torch.channels_last))
    other = torch.nn.Parameter(weight.detach().clone(memory_format=torch.preserve_format))
    ours, theirs = torch.optim.Adam([weight], lr=0.1), torch.optim.Adam([other], lr=0.1)
    for number in range(2):
        for parameter, optimizer in ((weight, ours), (other, theirs)):
            parameter.grad = torch.sin(parameter.detach() * (number + 1))
            optimizer.step()
    with team(tmp_path, servers=3) as it:
        client = it.client()
        exchange = Exchange(client, 0, ours)
        for parameter in (weight, other):
            parameter.grad = torch.cos(parameter.detach())
        exchange.step()
        theirs.step()
        torch.testing.assert_close(weight, other, rtol=1e-12, atol=1e-14)
        state = exchange.state()[0]
        for name, value in theirs.state[other].items():
            torch.testing.assert_close(state[name], value, rtol=1e-12, atol=1e-14)
        client.close()


def test_parameters_that_a_script_changes_reach_the_servers(tmp_path: Path) -> None:
    with team(tmp_path, servers=2) as it:
        client, net = it.client(), model()
        exchange = exchange_of(client, net)
        assert not exchange.is_changed()
        with torch.no_grad():
            net[0].weight.fill_(2.0)  # type: ignore[index, union-attr]
        assert exchange.is_changed()
        exchange.assign(send=True)
        assert not exchange.is_changed()
        exchange.pull()
        assert (net[0].weight == 2).all()  # type: ignore[index, union-attr]
        client.close()
