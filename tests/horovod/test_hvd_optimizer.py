"""DistributedOptimizer gives the numbers of one process on the global batch; states and batch norm follow."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hvd_worlds import world
from pool import Pools
from torch import nn

import paceline.horovod.torch as hvd

SIZES = (2, 3)
ROWS = 6  # per step: divisible by 2 and 3
STEPS = 4


def make_model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(step)
    return (
        torch.randn(ROWS, 5, generator=made, dtype=torch.float64),
        torch.randn(ROWS, 3, generator=made, dtype=torch.float64),
    )


def alone_on_the_global_batch(passes: int = 1) -> list[torch.Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            x, y = data(step * passes + number)
            nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def train(rank: int, size: int, passes: int, options: dict[str, Any]) -> list[torch.Tensor]:
    model = make_model(seed=rank)  # the broadcast must make them equal
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
    if options.pop("lists", False):
        options["groups"] = [[model[0].weight, model[2].bias], [model[2].weight]]
    if options.pop("named", True):
        options["named_parameters"] = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes, **options)
    assert type(optimizer).__name__ == "SGD"
    assert isinstance(optimizer, torch.optim.SGD)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    own = slice(rank * ROWS // size, (rank + 1) * ROWS // size)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for number in range(passes):
            x, y = data(step * passes + number)
            nn.functional.mse_loss(model(x[own]), y[own]).backward()
        if step == 1:
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.crossed("size")
@pytest.mark.parametrize(
    "options",
    [{}, {"named": False}, {"groups": 2}, {"lists": True}, {"gradient_predivide_factor": 4.0}],
    ids=["plain", "unnamed", "groups", "lists", "predivide"],
)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_weights_as_one_process_on_the_global_batch(pool: Pools, size: int, options: dict[str, Any]) -> None:
    wanted = alone_on_the_global_batch()
    for weights in world(pool, size).run(train, 1, options):
        for found, right in zip(weights, wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_several_backward_passes_per_step(pool: Pools, size: int) -> None:
    wanted = alone_on_the_global_batch(passes=3)
    for weights in world(pool, size).run(train, 3, {}):
        for found, right in zip(weights, wanted, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-12)


def test_fp16_compression(pool: Pools) -> None:
    wanted = alone_on_the_global_batch()
    for weights in world(pool, 2).run(train, 1, {"compression": hvd.Compression.fp16}):
        for found, right in zip(weights, wanted, strict=True):
            assert found.dtype == torch.float64
            torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-2)


def mistakes(rank: int, size: int) -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="unique"):
        hvd.DistributedOptimizer(sgd, named_parameters=[("x", p) for p in model.parameters()])
    with pytest.raises(ValueError, match="not named"):
        hvd.DistributedOptimizer(sgd, named_parameters=list(model.named_parameters())[:1])
    with pytest.raises(ValueError, match="tuples"):
        hvd.DistributedOptimizer(sgd, named_parameters=list(model.parameters()))
    with pytest.raises(ValueError, match="must be > 0"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="predivide"):
        hvd.DistributedOptimizer(sgd, gradient_predivide_factor=2.0, op=hvd.Sum)
    with pytest.raises(ValueError, match="only appear once"):
        hvd.DistributedOptimizer(sgd, groups=[[model[0].weight], [model[0].weight]])
    with pytest.warns(DeprecationWarning, match="num_groups"):
        optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters(), num_groups=1)
    x, y = data(0)
    nn.functional.mse_loss(model(x), y).backward()
    with pytest.raises(AssertionError, match="race condition"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        nn.functional.mse_loss(model(x), y).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize"):
        optimizer.step()
    optimizer.zero_grad()
    for hook in optimizer._hooks:
        hook.remove()


def test_mistakes(pool: Pools) -> None:
    world(pool, 2).run(mistakes)


def branches(rank: int, size: int) -> list[float]:
    """Each rank uses another layer: the gradients of the others count as zero."""
    layers = nn.ModuleList([nn.Linear(2, 1, bias=False).double() for _ in range(size)])
    with torch.no_grad():
        for layer in layers:
            layer.weight.fill_(1.0)
    sgd = torch.optim.SGD(layers.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=layers.named_parameters())
    layers[rank](torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    optimizer.step()
    return [layer.weight[0, 0].item() for layer in layers]


@pytest.mark.parametrize("size", SIZES)
def test_a_layer_that_only_one_rank_uses(pool: Pools, size: int) -> None:
    for weights in world(pool, size).run(branches):
        assert weights == pytest.approx([1 - 1 / size] * size)


def embeddings(rank: int, size: int, as_dense: bool) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        sparse_as_dense=as_dense,
    )
    hvd.broadcast_optimizer_state(optimizer, 0, model=model)
    model(torch.tensor([rank, rank, rank + 1])).sum().backward()
    optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(pool: Pools, as_dense: bool) -> None:
    torch.manual_seed(0)
    weight = nn.Embedding(6, 2).weight.detach().clone()
    weight[0] -= 1.0
    weight[1] -= 1.5
    weight[2] -= 0.5
    for found in world(pool, 2).run(embeddings, as_dense):
        torch.testing.assert_close(found, weight)


def restored(rank: int, size: int) -> None:
    """Only rank 0 has read a checkpoint."""
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5 if rank == 0 else 0.1)
    if rank == 0:
        x, y = data(0)
        for _ in range(3):
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    states = hvd.allgather_object(optimizer.state_dict())
    for state in states:
        assert state["param_groups"] == states[0]["param_groups"]
        assert state["param_groups"][0]["lr"] == 0.5
        for number, entries in states[0]["state"].items():
            for key, value in entries.items():
                torch.testing.assert_close(state["state"][number][key], value)
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)
    with pytest.raises(ValueError, match="invalid params"):
        hvd.broadcast_parameters(7, 0)


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_get_the_state_that_rank_0_has_read(pool: Pools, size: int) -> None:
    world(pool, size).run(restored)


def adasum_steps(rank: int, size: int) -> list[float]:
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
    (weight * torch.tensor([1.0, 0.0] if rank else [0.0, 1.0])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
    return weight.tolist()


def test_adasum_combines_updates(pool: Pools) -> None:
    for weights in world(pool, 2).run(adasum_steps):
        assert weights == pytest.approx([-2.0, -2.0]), "orthogonal updates add up, equal ones count once"


def scheduled(rank: int, size: int) -> float:
    weight = nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([weight], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, 0.5)  # made before the optimizer is wrapped
    optimizer = hvd.DistributedOptimizer(sgd)
    for _ in range(2):
        (weight * (rank + 1)).sum().backward()
        optimizer.step()
        with warnings.catch_warnings():  # torch looks for the steps of the optimizer that is wrapped
            warnings.simplefilter("ignore")
            scheduler.step()
        optimizer.zero_grad()
    return weight.item()


def test_a_scheduler_of_the_wrapped_optimizer_works(pool: Pools) -> None:
    assert world(pool, 2).run(scheduled) == [pytest.approx(-1.5 * 1.5)] * 2


# -- batch norm ----------------------------------------------------------------------------------------------------


def normalised(rank: int, size: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    whole = torch.randn(shape, dtype=torch.float64) * 3 + 1
    own = whole.tensor_split(size)[rank].clone().requires_grad_()
    layer = hvd.SyncBatchNorm(shape[1]).double()
    out = layer(own)
    (out * out.detach().sin()).sum().backward()
    layer.eval()
    assert layer(own).shape == own.shape
    assert own.grad is not None
    assert layer.weight.grad is not None
    return out.detach(), own.grad, layer.running_mean, layer.running_var, layer.weight.grad


@pytest.mark.crossed("size")
@pytest.mark.parametrize("shape", [(7, 4), (5, 3, 4), (4, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_batch_norm_over_all_ranks(pool: Pools, size: int, shape: tuple[int, ...]) -> None:
    found = world(pool, size).run(normalised, shape)
    torch.manual_seed(3)
    whole = (torch.randn(shape, dtype=torch.float64) * 3 + 1).requires_grad_()
    kinds: list[Any] = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d]
    layer = kinds[len(shape) - 2](shape[1]).double()
    out = layer(whole)
    (out * out.detach().sin()).sum().backward()
    torch.testing.assert_close(torch.cat([each[0] for each in found]), out.detach())
    torch.testing.assert_close(torch.cat([each[1] for each in found]), whole.grad)
    for each in found:
        torch.testing.assert_close(each[2], layer.running_mean)
        torch.testing.assert_close(each[3], layer.running_var)
    torch.testing.assert_close(sum(each[4] for each in found), layer.weight.grad)


def normalised_twice(rank: int, size: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(3)
    whole = torch.randn((2, 4), dtype=torch.float64)
    own = whole.tensor_split(size)[rank].clone().requires_grad_()
    layers = nn.Sequential(hvd.SyncBatchNorm(4, affine=False), hvd.SyncBatchNorm(4)).double()
    out = layers(own * 2)
    (out * out.detach().sin()).sum().backward()
    assert own.grad is not None
    return out.detach(), own.grad


def test_a_rank_without_rows_takes_part_in_batch_norm(pool: Pools) -> None:
    found = world(pool, 3).run(normalised_twice)
    torch.manual_seed(3)
    whole = torch.randn((2, 4), dtype=torch.float64).requires_grad_()
    out = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4)).double()(whole * 2)
    (out * out.detach().sin()).sum().backward()
    torch.testing.assert_close(torch.cat([each[0] for each in found]), out.detach())
    torch.testing.assert_close(torch.cat([each[1] for each in found]), whole.grad)
