"""Mirrored: asked for in a script, alone, on workers, or under another launcher; and what it does at the seams."""

from __future__ import annotations

import multiprocessing
import os
import socket
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pool import alone
from staged import lone_group, staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.comm.group import Group
from paceline.script.seams import api, instrument
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings
from paceline.strategies.mirrored import Mirrored, gather_sparse, leaves_of


def rows(batch: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_workers(group: Group, script: Callable[..., Any], *args: Any) -> Any:
    with staged(group):
        return script(*args)


def check(pool: Any, world: int, script: Callable[..., Any], *args: Any) -> None:
    """The script gives the same numbers on one process and on workers."""
    expected = script(*args)
    for found in pool(world).run(on_workers, script, *args):
        compare(found, expected)


def compare(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            compare(a, b)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    else:
        assert found == pytest.approx(expected, rel=1e-10)


# -- asked for in a script ---------------------------------------------------------------------------------------------


def distributed_alone() -> None:
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    model = nn.Linear(2, 1)
    given = model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(torch.randn(4, 2), batch_size=2)
    found = paceline.Mirrored().distribute(*given)
    assert all(a is b for a, b in zip(found, given, strict=True))
    assert paceline.Mirrored().distribute(model) is model
    for x in given[2]:
        model(x).sum().backward()
        given[1].step()


def test_alone_it_changes_nothing() -> None:
    process = multiprocessing.get_context("fork").Process(target=distributed_alone)
    process.start()
    process.join()
    assert process.exitcode == 0


def trained(distribute: Callable[..., Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(rows(11), rows(11, seed=1)[:, :1]), batch_size=4)
    model, optimizer, loader = distribute(model, optimizer, loader)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def under_torchrun(group: Group, port: int) -> list[torch.Tensor]:
    """The environment that torchrun gives to its workers."""
    os.environ |= {
        "RANK": str(group.rank),
        "WORLD_SIZE": str(group.world),
        "LOCAL_RANK": str(group.rank),
        "LOCAL_WORLD_SIZE": str(group.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return trained(paceline.Mirrored().distribute)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_under_torchrun_it_connects_the_workers() -> None:
    expected = trained(lambda *objects: objects)
    with alone(2) as pool:
        for found in pool.run(under_torchrun, free_port()):
            compare(found, expected)


def under_paceline(group: Group) -> tuple[bool, list[torch.Tensor]]:
    """Everything is distributed already: asking for it again changes nothing."""
    with staged(group) as stage:
        api.take_stage(stage)
        numbers = trained(paceline.Mirrored().distribute)
        return api._stage is stage, numbers


def test_under_paceline_run_it_is_there_already() -> None:
    expected = trained(lambda *objects: objects)
    with alone(2) as pool:
        for same_stage, found in pool.run(under_paceline):
            assert same_stage
            compare(found, expected)


def distributed_one_by_one(group: Group) -> list[bool]:
    """Modules that are handed over later are distributed, too; others are not."""
    first, second, other = (nn.Linear(3, 1).double() for _ in range(3))
    stage = Stage(RunSettings(script="", workers=group.world), group, only=[])
    Mirrored().on_stage(stage)
    lose = instrument.find(stage)
    api.take_stage(stage)
    try:
        paceline.Mirrored().distribute(first)
        paceline.Mirrored().distribute(second, torch.optim.SGD(second.parameters(), lr=0.1))
        for module in (first, second, other):
            module(rows(4))
        return [module in stage.roots for module in (first, second, other)]
    finally:
        lose()


def test_only_what_is_handed_over_is_distributed() -> None:
    with alone(2) as pool:
        assert pool.run(distributed_one_by_one) == [[True, True, False]] * 2


# -- hooks of the script -----------------------------------------------------------------------------------------------


def hooked() -> list[torch.Tensor]:
    """A hook on a parameter sees, and may change, the gradient of the whole batch."""
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []

    def clip(grad: torch.Tensor) -> torch.Tensor:
        seen.append(grad.detach().clone())
        return grad.clamp(-0.5, 0.5)

    model.weight.register_hook(clip)
    for seed in range(3):
        model.zero_grad()
        (model(rows(5, seed=seed)) ** 2).sum().backward()
        seen.append(model.weight.grad.clone())
        seen.append(model.bias.grad.clone())
    return seen


def hooked_late() -> list[torch.Tensor]:
    """The hook is set after the first step, and another one later."""
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []
    for seed in range(4):
        model.zero_grad()
        (model(rows(5, seed=seed)) ** 2).sum().backward()
        seen.append(model.weight.grad.clone())
        if seed < 2:
            model.weight.register_hook(lambda grad, seed=seed: grad * (seed + 2) + grad.abs().max())
    return seen


def stepped_in_backward() -> list[torch.Tensor]:
    """An optimizer a parameter, run inside backward and freeing the gradient there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    losses = []
    for seed in range(3):
        loss = (model(rows(5, seed=seed)) ** 2).sum()
        loss.backward()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.parametrize("script", [hooked, hooked_late, stepped_in_backward], ids=lambda s: s.__name__)
@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
def test_hooks_on_parameters_see_the_global_gradient(pool: Any, script: Callable[..., Any], world: int) -> None:
    check(pool, world, script)


# -- parameters --------------------------------------------------------------------------------------------------------


def frozen_then_not() -> list[Any]:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double(), []
    model[0].requires_grad_(False)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        if step == 3:
            model[1].requires_grad_(False)
        model.zero_grad()
        (model(rows(5, seed=step)) ** 2).sum().backward()
        seen += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return seen


def tied() -> list[Any]:
    torch.manual_seed(0)
    one, other = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    other.weight = one.weight
    (other(torch.tanh(one(rows(5)))) ** 2).sum().backward()
    return [one.weight.grad, one.bias.grad, other.bias.grad]


def outside_of_modules() -> list[Any]:
    """A leaf that is no module's parameter: a learned temperature, a latent code."""
    torch.manual_seed(0)
    model, scale = nn.Linear(3, 2).double(), torch.ones(2, dtype=torch.float64, requires_grad=True)
    codes = rows(5).requires_grad_()
    seen = []
    for _ in range(2):
        (model(codes) * scale).pow(2).sum().backward()
        seen += [scale.grad.clone(), codes.grad.clone(), model.weight.grad.clone()]
    return seen


def one_row_reaches_it() -> list[Any]:
    """A parameter that only one worker's rows lead to."""
    torch.manual_seed(0)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(3, 1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.new_zeros(len(x), 1)
            for number, expert in enumerate(self.experts):
                mine = (x[:, 0].round() % 3 == number).nonzero().flatten()
                if len(mine):
                    out = out.index_add(0, mine, expert(x[mine]))
            return out

    model, seen = Experts().double(), []
    for choice in ([0.0, 0, 0, 1], [2.0, 2, 2, 2], [0.0, 1, 2, 0]):
        x = rows(4)
        x[:, 0] = torch.tensor(choice, dtype=torch.float64)
        model.zero_grad()
        (model(x) ** 2).sum().backward()
        seen += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]
    return seen


def sparse() -> list[Any]:
    torch.manual_seed(0)
    model, seen = nn.Embedding(6, 2, sparse=True).double(), []
    for words in ([0, 1, 1, 5], [2, 2, 2, 2], [3, 0, 0, 0, 1]):
        model.zero_grad()
        (model(torch.tensor(words)) ** 2).sum().backward()
        assert model.weight.grad.is_sparse
        seen.append(model.weight.grad.to_dense())
    return seen


def with_a_graph() -> list[Any]:
    """backward(create_graph=True): gradients that have a graph themselves."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    with warnings.catch_warnings(action="ignore"):  # torch's own, of a reference cycle
        (model(rows(5)) ** 3).sum().backward(create_graph=True)
    first = [p.grad for p in model.parameters()]
    penalty = sum((g**2).sum() for g in first)
    for p in model.parameters():
        p.grad = None
    penalty.backward()
    return [g.detach() for g in first] + [p.grad.detach() for p in model.parameters()]


def converted() -> list[Any]:
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []
    for dtype in (torch.float64, torch.float32, torch.float64):
        model.to(dtype)
        model.zero_grad()
        (model(rows(4).to(dtype)) * 2).sum().backward()
        seen.append(model.bias.grad.double())
    return seen


def replaced() -> list[Any]:
    """A new model takes the old one's place, several times."""
    seen = []
    for fold in range(3):
        torch.manual_seed(fold)
        model = nn.Linear(3, 2).double()
        for step in range(2):
            model.zero_grad()
            (model(rows(5, seed=step)) ** 2).sum().backward()
            seen.append(model.weight.grad.clone())
    return seen


def accumulated() -> list[Any]:
    """Over three backwards, zeroed both ways, and looked at in between at times."""
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(7):
        for part in range(3):
            (model(rows(5, seed=step * 3 + part)) ** 2).mean().backward()
            if step == 5:
                seen.append(model.weight.grad.clone())
        if step == 4:
            seen.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        seen.append(model.weight.detach().clone())
        optimizer.zero_grad(set_to_none=bool(step % 2))
    return seen


def accumulated_in_changing_numbers() -> list[Any]:
    """The rhythm is learnt, and then breaks."""
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, parts in enumerate([3, 3, 3, 3, 1, 2, 3, 3, 3, 5, 1]):
        for part in range(parts):
            (model(rows(4, seed=step * 3 + part)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.weight.detach().clone())
    return seen


def clipped_by_value() -> list[Any]:
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2).double(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(5):
        for part in range(2):
            (model(rows(5, seed=step * 2 + part)) ** 2).sum().backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(model.weight.detach().clone())
    return seen


def accumulated_and_thrown_away() -> list[Any]:
    """In the middle of an accumulation the script gives up (a loss that is no number) and begins again."""
    torch.manual_seed(0)
    one, other, seen = nn.Linear(3, 2).double(), nn.Linear(3, 2).double(), []
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.05, momentum=0.9)
    for step in range(8):
        for part in range(2):
            x = rows(4, seed=step * 2 + part)
            loss = (one(x) ** 2).mean()
            if not (step == 6 and part == 1):
                loss = loss + (other(x) ** 2).mean()
            loss.backward()
            if step == 6 and part == 0:
                optimizer.zero_grad()
        seen += [torch.zeros(1) if p.grad is None else p.grad.clone() for p in other.parameters() if step == 6]
        optimizer.step()
        optimizer.zero_grad()
        seen += [one.weight.detach().clone(), other.weight.detach().clone()]
    return seen


def accumulated_with_unused() -> list[Any]:
    """Each backward of a step reaches another part of the model."""
    torch.manual_seed(0)
    parts, seen = [nn.Linear(3, 2).double() for _ in range(3)], []
    optimizer = torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.05)
    for step in range(5):
        for number in range(3):
            (parts[(number + step) % 3](rows(4, seed=step)) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += [part.weight.detach().clone() for part in parts]
    return seen


SCRIPTS = [
    frozen_then_not,
    tied,
    outside_of_modules,
    one_row_reaches_it,
    sparse,
    with_a_graph,
    converted,
    replaced,
    accumulated,
    accumulated_in_changing_numbers,
    clipped_by_value,
    accumulated_and_thrown_away,
    accumulated_with_unused,
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
def test_gradients_of_all_kinds_of_parameters(pool: Any, script: Callable[..., Any], world: int) -> None:
    check(pool, world, script)


def sums_in_a_step(group: Group) -> list[int]:
    """How many buckets are sent in each step of three backwards."""
    with staged(group):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        sent, plain, counts = 0, group.start_all_reduce, []

        def start_all_reduce(*args: Any, **kwargs: Any) -> Any:
            nonlocal sent
            sent += 1
            return plain(*args, **kwargs)

        group.start_all_reduce = start_all_reduce  # type: ignore[method-assign]
        for step in range(6):
            for part in range(3):
                (model(torch.ones(4, 3) * (step + part)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            counts.append(sent)
            sent = 0
        del group.start_all_reduce
        return counts


def test_accumulated_gradients_are_sent_once_a_step(pool: Any) -> None:
    for counts in pool(2).run(sums_in_a_step):
        assert counts[0] == 3
        assert counts[-1] == 1


# -- buffers -----------------------------------------------------------------------------------------------------------


def buffers(group: Group, then: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    with staged(group) as stage:
        stage.views.norms_see_batch = False
        model = nn.BatchNorm1d(3).double()
        model(rows(6))
        before = model.running_mean.clone()
        if then == "evaluation":
            model.eval()(rows(6))
        else:
            torch.save(model.state_dict(), os.devnull)
        return before, model.running_mean.clone(), int(model.num_batches_tracked)


@pytest.mark.parametrize("then", ["evaluation", "save"])
def test_running_statistics_are_averaged_before_they_are_looked_at(pool: Any, then: str) -> None:
    found = pool(2).run(buffers, then)
    assert not torch.equal(found[0][0], found[1][0]), "each worker's are of its slices"
    average = (found[0][0] + found[1][0]) / 2
    for _, after, batches in found:
        torch.testing.assert_close(after, average)
        assert batches == 1


def test_the_average_of_slices_means_is_the_mean_of_the_batch(pool: Any) -> None:
    norm = nn.BatchNorm1d(3).double()
    norm(rows(6))
    for _, after, _ in pool(2).run(buffers, "evaluation"):
        torch.testing.assert_close(after, norm.running_mean)


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_the_leaves_of_a_loss_are_found_in_a_fixed_order() -> None:
    a, b, c = (torch.ones(2, requires_grad=True) for _ in range(3))
    loss = ((a * b).sum() + (b**2).sum()) * 2
    found = leaves_of([loss, c.sum()])
    assert {id(leaf) for leaf, _ in found} == {id(a), id(b), id(c)}
    assert len(found) == 3
    assert not any(inside for _, inside in found)
    assert [id(leaf) for leaf, _ in leaves_of([loss, c.sum()])] == [id(leaf) for leaf, _ in found]
    assert leaves_of([torch.ones(1)]) == []


def gathered_sparse(group: Group, reached_by: list[int]) -> torch.Tensor:
    parameter = torch.zeros(5, 2, dtype=torch.float64)
    grad = None
    if group.rank in reached_by:
        indices = torch.tensor([[group.rank, 4, 4]])
        grad = torch.sparse_coo_tensor(indices, torch.ones(3, 2, dtype=torch.float64), (5, 2), check_invariants=True)
    return gather_sparse(grad, parameter, group).to_dense()


@pytest.mark.parametrize("reached_by", [[0, 1, 2], [1], []], ids=str)
def test_sparse_gradients_are_added_up_where_they_meet(pool: Any, reached_by: list[int]) -> None:
    expected = torch.zeros(5, 2, dtype=torch.float64)
    for rank in reached_by:
        expected[rank] += 1 / 3
        expected[4] += 2 / 3
    for found in pool(3).run(gathered_sparse, reached_by):
        torch.testing.assert_close(found, expected)


def test_on_one_worker_nothing_is_hooked() -> None:
    with staged(lone_group()):
        model = nn.Linear(2, 1)
        model(torch.ones(1, 2)).sum().backward()
    assert not model.weight._post_accumulate_grad_hooks
    assert not model.weight._backward_hooks
