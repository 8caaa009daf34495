"""The digest of tensors: every bit counts, and its place; and tensors of any kind have one."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.agreement.digest import ROW, digest, parts, sketch


def of(*tensors: torch.Tensor) -> list[int]:
    return [int(number) for number in digest(tensors)]


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype)


@given(
    size=st.sampled_from([1, 7, ROW - 1, ROW, ROW + 1, 5 * ROW + 3, 70_000, 140_001]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 31),
)
def test_any_single_bit_changes_it(size: int, place: float, bit: int) -> None:
    tensor = numbers(size)
    before = of(tensor)
    tensor.view(torch.int32)[int(place * size)] ^= (1 << bit) if bit < 31 else -(1 << 31)
    assert of(tensor) != before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_any_single_element_of_any_type_changes_it(dtype: torch.dtype) -> None:
    tensor = numbers(300, dtype)
    found = [of(tensor)]
    for i in range(len(tensor)):
        changed = tensor.clone()
        changed[i] = not changed[i] if dtype is torch.bool else changed[i] + 1
        found.append(of(changed))
    assert len({tuple(one) for one in found}) == len(found)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[torch.randperm(len(t), generator=torch.Generator().manual_seed(1))],
        lambda t: t.flip(0),
        lambda t: -t,
        lambda t: torch.cat([t[ROW:], t[:ROW]]),
        lambda t: torch.cat([-t[:2], t[2:]]),
        lambda t: torch.nextafter(t, torch.zeros_like(t)),
    ],
    ids=["shuffled", "reversed", "negated", "rows swapped", "two signs flipped", "the next numbers"],
)
@pytest.mark.parametrize("start", [numbers, torch.ones, lambda n: torch.ones(n).cumsum(0) % 2 - 0.5])
def test_patterns_that_a_plain_sum_would_miss(
    change: Callable[[torch.Tensor], torch.Tensor], start: Callable[[int], torch.Tensor]
) -> None:
    tensor = start(4 * ROW)
    changed = change(tensor)
    assert (of(changed) == of(tensor)) == torch.equal(changed, tensor)


def test_negative_zero_is_another_bit() -> None:
    assert of(torch.tensor([0.0])) != of(torch.tensor([-0.0]))


def test_views_have_the_digest_of_their_values() -> None:
    tensor = numbers(600).view(20, 30)
    assert of(tensor.t()) == of(tensor.t().contiguous())
    assert of(tensor[::2, 3:]) == of(tensor[::2, 3:].clone())
    image = numbers(480).view(2, 3, 8, 10)
    assert of(image.to(memory_format=torch.channels_last)) == of(image)


def test_an_expanded_tensor_takes_no_memory() -> None:
    wide = torch.ones(3, 1).expand(3, 1 << 40)
    assert of(wide) == of(torch.ones(3, 1))


def test_large_and_small_tensors_together() -> None:
    tensors = [numbers(size) for size in (3, 100_000, 1, 70_000, 65_536, 2)]
    before = of(*tensors)
    assert len(before) == 1
    for tensor in tensors:
        kept = tensor[-1].clone()
        tensor[-1] = torch.nextafter(kept, kept + 1)
        assert of(*tensors) != before
        tensor[-1] = kept
    assert of(*tensors) == before


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind() -> None:
    dense = torch.eye(4)
    with warnings.catch_warnings(action="ignore"):
        kinds = [
            dense.to_sparse(),
            dense.to_sparse_csr(),
            dense.to_sparse_csc(),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            dense.to(torch.complex64).conj(),
            torch._neg_view(dense),
            dense.to(torch.float8_e4m3fn),
            dense.to(torch.float8_e5m2),
            torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8),
            torch.tensor(3.0),
        ]
    for tensor in kinds:
        assert len(of(tensor)) == 1, tensor
    for nothing in (torch.empty(0, 3), torch.empty(3, device="meta")):
        assert of(nothing) == []
        assert parts(nothing) == []
        assert sketch(nothing) is None


def test_inside_inference_mode_and_outside() -> None:
    with torch.inference_mode():
        inside = of(numbers(10))
    assert of(numbers(10)) == inside


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_a_sketch_tells_rounding_from_a_difference(dtype: torch.dtype) -> None:
    tensor = numbers(70_001).to(dtype)
    norm = float(tensor.abs().double().norm())
    first, rounded, other = (
        sketch(t) for t in (tensor, tensor * (1 + torch.finfo(dtype).eps), tensor[torch.arange(len(tensor)) - 1])
    )
    assert float(first[1]) == pytest.approx(norm**2, rel=1e-6)
    assert abs(float(rounded[0] - first[0])) <= 4 * torch.finfo(dtype).eps * norm
    assert abs(float(other[0] - first[0])) > 0.01 * norm


def test_integers_have_no_sketch() -> None:
    assert sketch(torch.arange(3)) is None
