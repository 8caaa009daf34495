"""Compression between hosts: the bytes that it saves, the numbers that it changes, and that all workers agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wires import Counting, ThreadWire, on_threads, wire_of

from paceline.comm.group import Group
from paceline.comm.network.compression import BLOCK, Bfloat16, Compressor, Float16, Scaled
from paceline.comm.network.powersgd import PowerSGD

SHAPES = ((40, 60), (60,), (4, 2, 3, 3), (3,), (100, 50))  # the convolution is too small to be compressed
LENGTH = sum(math.prod(shape) for shape in SHAPES)
KINDS: dict[str, Callable[[], Compressor]] = {
    "bf16": Bfloat16,
    "fp16": Float16,
    "powersgd": lambda: PowerSGD(2, SHAPES, start=0),
}


def normal(seed: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_same_bits(found: list[torch.Tensor]) -> None:
    for other in found[1:]:
        assert torch.equal(found[0].view(torch.uint8), other.view(torch.uint8))


# -- half types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "error"), [("bf16", 2**-8), ("fp16", 2**-11)])
@given(world=st.integers(1, 7), size=st.integers(0, 5000), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_each_value_is_rounded_twice_however_many_hosts(
    kind: str, error: float, world: int, size: int, dtype: torch.dtype
) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        part = normal(wire.rank, size, dtype)
        KINDS[kind]().all_reduce(part, wire)
        return part

    found = on_threads(world, work)
    assert_same_bits(found)
    brought = torch.stack([normal(rank, size, dtype).double() for rank in range(world)])
    allowed = error * (brought.abs().sum(0) + brought.sum(0).abs()) * 1.01 + 1e-7
    assert ((found[0].double() - brought.sum(0)).abs() <= (allowed if world > 1 else 0)).all()


@pytest.mark.parametrize("kind", ["bf16", "fp16", "powersgd"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.bfloat16], ids=str)
def test_other_dtypes_travel_as_they_are(kind: str, dtype: torch.dtype) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        part = torch.arange(LENGTH).remainder(100).to(dtype)
        KINDS[kind]().all_reduce(part, wire)
        return part

    for found in on_threads(3, work):
        assert torch.equal(found, (torch.arange(LENGTH).remainder(100) * 3).to(dtype))


numbers = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(values=st.lists(numbers, max_size=50), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_no_finite_value_overflows_in_fp16(values: list[float], dtype: torch.dtype) -> None:
    brought = torch.tensor(values, dtype=dtype)
    codec = Scaled(dtype)
    found = codec.decode(codec.encode(brought), len(values))
    largest = brought.abs().max() if values else torch.tensor(0.0)
    assert found.isfinite().all()
    smallest = largest * 2.0**-39 + torch.finfo(dtype).tiny
    assert ((found - brought).abs() <= brought.abs() * 2**-11 + smallest).all()


def test_fp16_carries_sums_that_fp16_cannot_hold() -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        part = torch.tensor([6e4, 1e30, -1e-30, 3e38, 0.0]).repeat_interleave(BLOCK)
        Float16().all_reduce(part, wire)
        return part[::BLOCK]

    for found in on_threads(2, work):
        torch.testing.assert_close(found[:3], torch.tensor([1.2e5, 2e30, -2e-30]), rtol=2**-10, atol=0)
        assert found[3] == math.inf  # as in float32: the sum itself is too large
        assert found[4] == 0.0


@pytest.mark.parametrize("kind", ["bf16", "fp16", "powersgd"])
def test_infinities_and_nan_arrive_as_such(kind: str) -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        part = torch.ones(LENGTH)
        if wire.rank == 1:
            part[5], part[7], part[9] = math.inf, -math.inf, math.nan
        KINDS[kind]().all_reduce(part, wire)
        return part

    for found in on_threads(3, work):
        assert found[5] == math.inf
        assert found[7] == -math.inf
        assert found[9].isnan()
        assert (found[10:] == 3.0).all()


def bytes_of(group: Group, kind: str, steps: int) -> int:
    wire = Counting(wire_of(group))
    compressor = KINDS[kind]()
    for _ in range(steps):
        compressor.all_reduce(normal(group.rank, LENGTH), wire)
    return wire.bytes


def test_half_types_halve_the_bytes(pool: Any) -> None:
    assert sum(pool(2).run(bytes_of, "bf16", 1)) == 2 * LENGTH * 2
    exponents = 2 * sum(math.ceil(size / BLOCK) for size in (LENGTH // 2, LENGTH - LENGTH // 2))
    assert sum(pool(2).run(bytes_of, "fp16", 1)) == pytest.approx(2 * (LENGTH * 2 + exponents), abs=8)


# -- PowerSGD ----------------------------------------------------------------------------------------------------------


def test_powersgd_sends_thin_matrices(pool: Any) -> None:
    thin = 2 * (40 + 60 + 100 + 50)
    rest = LENGTH - 40 * 60 - 100 * 50
    orthogonal = 2 * (40 + 100)  # from the first worker to the other
    assert sum(pool(2).run(bytes_of, "powersgd", 3)) == 3 * 4 * (2 * (thin + rest) + orthogonal)


def of_rank_two(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    rows, columns = shape[0], math.prod(shape[1:])
    return normal(seed, rows * 2).view(rows, 2) @ normal(seed + 1, columns * 2).view(2, columns)


@pytest.mark.parametrize("world", [2, 3, 5])
def test_powersgd_keeps_what_has_its_rank_and_what_is_too_small(world: int) -> None:
    """All workers' matrices have the same rows, so that their sum has rank 2, too."""

    def bring(rank: int) -> torch.Tensor:
        pieces = [
            (rank + 1) * of_rank_two(7, shape) if len(shape) == 2 else normal(rank, math.prod(shape))
            for shape in SHAPES
        ]
        return torch.cat([piece.flatten() for piece in pieces])

    def work(wire: ThreadWire) -> torch.Tensor:
        part = bring(wire.rank)
        PowerSGD(2, SHAPES, start=0).all_reduce(part, wire)
        return part

    found = on_threads(world, work)
    assert_same_bits(found)
    torch.testing.assert_close(
        found[0], torch.stack([bring(rank) for rank in range(world)]).sum(0), rtol=1e-3, atol=1e-3
    )


def test_nothing_is_lost_what_is_left_out_comes_later() -> None:
    """Over the steps the totals add up to what was brought, less what the workers still remember."""
    steps = 30

    def work(wire: ThreadWire) -> torch.Tensor:
        compressor, arrived = PowerSGD(2, SHAPES, start=3), torch.zeros(LENGTH, dtype=torch.float64)
        for _ in range(steps):
            part = normal(wire.rank, LENGTH, torch.float64)
            compressor.all_reduce(part, wire)
            arrived += part
        remembered = torch.zeros(LENGTH, dtype=torch.float64)
        (memory,) = compressor._memories.values()
        for place, left_out in zip(memory.places, memory.left_out, strict=True):
            place.of(remembered).copy_(left_out)
        return torch.stack([arrived, remembered])

    found = on_threads(3, work)
    assert_same_bits([each[0] for each in found])
    brought = steps * sum(normal(rank, LENGTH, torch.float64) for rank in range(3))
    remembered = sum(each[1] for each in found)
    assert remembered.abs().max() > 1.0
    torch.testing.assert_close(found[0][0] + remembered, brought)


def test_a_gradient_that_was_zero_does_not_stay_zero() -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        compressor = PowerSGD(1, [(30, 30)], start=0)
        for _ in range(3):
            compressor.all_reduce(torch.zeros(900), wire)
        for _ in range(3):
            part = torch.ones(900)
            compressor.all_reduce(part, wire)
        return part

    for found in on_threads(2, work):
        assert (found - 2.0).abs().max() < 1.5


def test_a_step_that_is_not_finite_spoils_no_later_one() -> None:
    def work(wire: ThreadWire) -> torch.Tensor:
        compressor = PowerSGD(2, SHAPES, start=0)
        for step in range(6):
            part = torch.ones(LENGTH)
            if step == 2 and wire.rank == 0:
                part[0] = math.nan
            compressor.all_reduce(part, wire)
        return part

    for found in on_threads(2, work):
        torch.testing.assert_close(found, torch.full((LENGTH,), 2.0))


@given(start=st.integers(0, LENGTH), length=st.integers(0, LENGTH), with_shapes=st.booleans())
def test_any_stretch_of_a_bucket_can_be_a_part(start: int, length: int, with_shapes: bool) -> None:
    """Where lanes cut a matrix, its whole rows in the part are compressed; what travels covers everything once."""
    compressor = PowerSGD(1, SHAPES if with_shapes else None, start=0)
    part = torch.zeros(min(length, LENGTH - start))
    memory = compressor._remember(part, start)
    covered = [0] * part.numel()
    for place in memory.places:
        for index in range(place.start, place.start + place.rows * place.columns):
            covered[index] += 1
    for first, last in memory.rest:
        for index in range(first, last):
            covered[index] += 1
    assert covered == [1] * part.numel()


def least_squares(feedback: bool) -> float:
    """How far two workers stay from the solution of ‖W - T‖² after 1000 steps, with gradients of rank 1.

    Their batches disagree, each with the next one, about a direction in which there is nothing to learn, and loudly:
    the strongest direction of every single gradient is that noise."""
    target = torch.outer(torch.eye(12)[0], torch.eye(10)[0]) + torch.outer(torch.eye(12)[1], torch.eye(10)[1])
    noise = 5.0 * torch.outer(torch.eye(12)[5], torch.eye(10)[5])

    def work(wire: ThreadWire) -> torch.Tensor:
        weight = torch.zeros(12, 10)
        compressor = PowerSGD(1, [(12, 10)], start=0, feedback=feedback)
        for step in range(1000):
            gradient = (weight - target + noise * (-1) ** step) / wire.world
            flat = gradient.flatten()
            compressor.all_reduce(flat, wire)
            weight -= 0.01 * flat.view(12, 10)
        return weight

    found = on_threads(2, work)
    assert_same_bits(found)
    error = found[0] - target
    error[5] = 0.0  # the noise's own row
    return float(error.norm() / target.norm())


@pytest.mark.slow
def test_powersgd_converges_with_error_feedback_and_not_without() -> None:
    assert least_squares(feedback=True) < 0.05
    assert least_squares(feedback=False) > 0.9


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_compressor_says_what_it_changes(kind: str) -> None:
    assert "sent between hosts" in KINDS[kind]().notice
    assert "will differ" in KINDS[kind]().notice
