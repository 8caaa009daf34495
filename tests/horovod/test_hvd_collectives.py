"""Every collective of horovod.torch, on 2 and 3 ranks, with every dtype, in each of its forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hvd_worlds import world
from pool import Pools

import paceline.horovod.torch as hvd

SIZES = (2, 3)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OPS = {"Average": hvd.Average, "Sum": hvd.Sum, "Min": hvd.Min, "Max": hvd.Max, "Product": hvd.Product}


def values(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small whole numbers that differ by rank: sums and products of them are exact in every dtype."""
    return ((torch.arange(torch.Size(shape).numel()) + rank) % 3 + 1).view(shape).to(dtype)


def expected(size: int, dtype: torch.dtype, op: str, *shape: int) -> torch.Tensor:
    every = torch.stack([values(rank, dtype, *shape).double() for rank in range(size)])
    found = {"Sum": every.sum(0), "Min": every.amin(0), "Max": every.amax(0), "Product": every.prod(0)}
    average = every.mean(0) if dtype.is_floating_point else every.mean(0).trunc()
    return (average if op == "Average" else found[op]).to(dtype)


# -- allreduce -----------------------------------------------------------------------------------------------------


def reduce_all(rank: int, size: int, op: str) -> None:
    for dtype in (*WHOLE, *FLOATS):
        for shape in ((), (5,), (3, 4), (2, 0, 3)):
            tensor = values(rank, dtype, *shape)
            wanted, kept = expected(size, dtype, op, *shape), tensor.clone()
            case = f"{op} {dtype} {shape}"
            torch.testing.assert_close(hvd.allreduce(tensor, op=OPS[op], name="plain"), wanted, msg=case)
            torch.testing.assert_close(hvd.synchronize(hvd.allreduce_async(tensor, op=OPS[op])), wanted, msg=case)
            assert torch.equal(tensor, kept), "the input has changed"
            grouped = hvd.grouped_allreduce([tensor, tensor + 0, tensor.clone()], op=OPS[op], name="group")
            for result in grouped:
                torch.testing.assert_close(result, wanted, msg=case)
            same = hvd.allreduce_(tensor, op=OPS[op])
            assert same is tensor
            torch.testing.assert_close(tensor, wanted, msg=case)
            pair = [kept.clone(), kept.clone()]
            assert hvd.grouped_allreduce_(pair, op=OPS[op])[1] is pair[1]
            torch.testing.assert_close(pair[1], wanted, msg=case)


@pytest.mark.crossed("size")
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", SIZES)
def test_allreduce_of_every_dtype_in_every_form(pool: Pools, size: int, op: str) -> None:
    world(pool, size).run(reduce_all, op)


def reduce_scaled(rank: int, size: int) -> None:
    tensor = torch.full((4,), float(rank + 1), dtype=torch.float64)
    total = sum(range(1, size + 1))
    scaled = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(scaled, torch.full_like(tensor, total * 1.5))
    whole = hvd.allreduce(torch.full((3,), 7, dtype=torch.int32), op=hvd.Sum, prescale_factor=0.5)
    assert whole.tolist() == [3 * size] * 3, "whole numbers are rounded toward zero"
    half = hvd.allreduce(tensor.float() / 3, compression=hvd.Compression.fp16)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, torch.full((4,), total / size / 3), atol=1e-3, rtol=1e-3)
    mixed = hvd.grouped_allreduce([tensor, tensor.long(), tensor.float()], op=hvd.Sum)
    assert [t.dtype for t in mixed] == [torch.float64, torch.int64, torch.float32]
    assert all(float(t[0]) == total for t in mixed)
    with pytest.warns(DeprecationWarning, match="average"):
        assert float(hvd.allreduce(tensor, average=False)[0]) == total
    with pytest.raises(ValueError, match="supersedes"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)


@pytest.mark.parametrize("size", SIZES)
def test_scaling_compression_and_groups_of_several_dtypes(pool: Pools, size: int) -> None:
    world(pool, size).run(reduce_scaled)


# -- the others ----------------------------------------------------------------------------------------------------


def move_all(rank: int, size: int) -> None:
    for dtype in (*WHOLE, *FLOATS, torch.bool):
        mine = torch.full((rank + 1, 2), rank % 2, dtype=dtype)
        wanted = torch.cat([torch.full((r + 1, 2), r % 2, dtype=dtype) for r in range(size)])
        assert torch.equal(hvd.allgather(mine, name="gather"), wanted)
        assert torch.equal(hvd.synchronize(hvd.allgather_async(mine)), wanted)
        both = hvd.grouped_allgather([mine, mine[:, :1].contiguous()])
        assert torch.equal(both[0], wanted)
        assert torch.equal(both[1], wanted[:, :1])

        for root in range(size):
            start = torch.full((3,), rank % 2, dtype=dtype)
            result = hvd.broadcast(start, root, name="send")
            assert torch.equal(result, torch.full((3,), root % 2, dtype=dtype))
            assert torch.equal(start, torch.full((3,), rank % 2, dtype=dtype))
            assert hvd.broadcast_(start, root) is start
            assert torch.equal(start, result)

        rows = torch.arange(size * (size + 1) // 2).to(dtype)
        splits = torch.arange(1, size + 1, dtype=torch.int32)
        got, counts = hvd.alltoall(rows, splits)
        own = rows.split(splits.tolist())[rank]
        assert torch.equal(got, torch.cat([own] * size))
        assert counts.tolist() == [rank + 1] * size
        assert torch.equal(
            hvd.alltoall(torch.full((size,), rank % 2, dtype=dtype)), torch.arange(size).remainder(2).to(dtype)
        )

    for dtype in (*WHOLE, *FLOATS):
        whole = values(0, dtype, 2 * size + 1, 3)
        mine = hvd.reducescatter(whole, op=hvd.Sum, name="scatter")
        parts = (whole.double() * size).to(dtype).split([3, *[2] * (size - 1)])
        assert torch.equal(mine, parts[rank])
        two = hvd.grouped_reducescatter([whole, whole[:size].contiguous()], op=hvd.Average)
        assert torch.equal(two[0], whole.split([3, *[2] * (size - 1)])[rank])
        assert torch.equal(two[1], whole[rank : rank + 1])


@pytest.mark.parametrize("size", SIZES)
def test_collectives_that_move_rows(pool: Pools, size: int) -> None:
    world(pool, size).run(move_all)


def empty_parts(rank: int, size: int) -> None:
    mine = torch.ones(0 if rank else 4, 3)
    assert hvd.allgather(mine).shape == (4, 3)
    got, counts = hvd.alltoall(torch.ones(2, 3), splits=[2, *[0] * (size - 1)])
    assert got.shape == ((2 * size, 3) if rank == 0 else (0, 3))
    assert counts.tolist() == [2 if rank == 0 else 0] * size
    assert hvd.reducescatter(torch.ones(1, 2), op=hvd.Sum).shape == (1 if rank == 0 else 0, 2)
    rest, _ = hvd.alltoall(torch.arange(5), splits=[1] * size)
    assert len(rest) == size, "rows that no rank asked for are left out"


@pytest.mark.parametrize("size", SIZES)
def test_parts_may_be_empty(pool: Pools, size: int) -> None:
    world(pool, size).run(empty_parts)


def objects(rank: int, size: int) -> None:
    assert hvd.broadcast_object({"rank": rank}, root_rank=1) == {"rank": 1}
    assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]


@pytest.mark.parametrize("size", SIZES)
def test_objects(pool: Pools, size: int) -> None:
    world(pool, size).run(objects)


def adasum_of_two(rank: int, size: int) -> None:
    orthogonal = hvd.allreduce(torch.tensor([1.0, 0.0] if rank else [0.0, 2.0]), op=hvd.Adasum)
    assert orthogonal.tolist() == [1.0, 2.0], "orthogonal gradients add up"
    parallel = hvd.allreduce(torch.tensor([3.0, 3.0]), op=hvd.Adasum)
    assert parallel.tolist() == [3.0, 3.0], "equal gradients count once"
    small = torch.full((8,), 1e-4, dtype=torch.float16)
    torch.testing.assert_close(hvd.allreduce(small, op=hvd.Adasum), small)


def test_adasum(pool: Pools) -> None:
    world(pool, 2).run(adasum_of_two)


def refuse_adasum(rank: int, size: int) -> None:
    with pytest.raises(NotImplementedError, match="power of 2"):
        hvd.allreduce(torch.ones(2), op=hvd.Adasum)


def test_adasum_needs_a_power_of_two(pool: Pools) -> None:
    world(pool, 3).run(refuse_adasum)


# -- gradients -----------------------------------------------------------------------------------------------------


def gradients(rank: int, size: int) -> None:
    def grad_of(function: Any, tensor: torch.Tensor) -> torch.Tensor:
        leaf = tensor.clone().requires_grad_()
        result = function(leaf)
        (result[0] if isinstance(result, (tuple, list)) else result).backward(
            torch.full_like((result[0] if isinstance(result, (tuple, list)) else result), float(rank + 1))
        )
        assert leaf.grad is not None
        return leaf.grad

    total, mean = sum(range(1, size + 1)), (size + 1) / 2
    rows = torch.ones(2 * size, 3, dtype=torch.float64)
    assert bool((grad_of(lambda t: hvd.allreduce(t, op=hvd.Sum), rows) == total).all())
    assert bool((grad_of(hvd.allreduce, rows) == mean).all())
    assert bool((grad_of(lambda t: hvd.grouped_allreduce([t], op=hvd.Sum), rows) == total).all())
    own = torch.ones(rank + 1, 3, dtype=torch.float64)
    assert bool((grad_of(hvd.allgather, own) == mean).all())
    assert bool((grad_of(lambda t: hvd.grouped_allgather([t]), own) == mean).all())
    at_root = grad_of(lambda t: hvd.broadcast(t, 1), rows)
    assert bool((at_root == (mean if rank == 1 else 0)).all())
    back = grad_of(lambda t: hvd.alltoall(t, splits=[2] * size), rows)
    assert back[:, 0].tolist() == [float(r + 1) for r in range(size) for _ in range(2)]
    every = [float(r + 1) for r in range(size) for _ in range(2)]
    assert grad_of(hvd.reducescatter, rows)[:, 0].tolist() == every
    scaled = grad_of(lambda t: hvd.reducescatter(t, op=hvd.Sum, prescale_factor=0.5), rows)
    assert scaled[:, 0].tolist() == [value * size * 0.5 for value in every]


@pytest.mark.parametrize("size", SIZES)
def test_gradients_are_as_horovod_defines_them(pool: Pools, size: int) -> None:
    world(pool, size).run(gradients)


def inference(rank: int, size: int) -> None:
    with torch.inference_mode():
        loss = torch.tensor([float(rank)])
        assert float(hvd.allreduce_(loss, op=hvd.Sum)) == sum(range(size))
        assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == size
    result = hvd.allgather(torch.ones(1, requires_grad=True))
    assert not result.is_inference()


def test_inference_mode(pool: Pools) -> None:
    world(pool, 2).run(inference)


def sparse(rank: int, size: int) -> None:
    own = torch.sparse_coo_tensor([[rank, rank + 1]], torch.tensor([1.0, 2.0]), (size + 2,))
    dense = sum(
        torch.sparse_coo_tensor([[r, r + 1]], torch.tensor([1.0, 2.0]), (size + 2,)).to_dense() for r in range(size)
    )
    handle = hvd.sparse_allreduce_async(own, "sparse", hvd.Average)
    torch.testing.assert_close(handle().to_dense(), dense / size)


@pytest.mark.parametrize("size", SIZES)
def test_sparse_tensors(pool: Pools, size: int) -> None:
    world(pool, size).run(sparse)
