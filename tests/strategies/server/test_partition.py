"""Parameters split over servers: every element once, and every server the same number of bytes."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.strategies.server.partition import GRAIN, Partition, TensorSpec, balance, describe, split

SHAPES = st.lists(st.lists(st.integers(0, 60), max_size=3).map(tuple), min_size=1, max_size=12)
DTYPES = st.sampled_from(["float32", "float64", "bfloat16"])


def specs(shapes: list[tuple[int, ...]], dtype: str = "float32") -> list[TensorSpec]:
    return [TensorSpec(f"p{number}", dtype, shape) for number, shape in enumerate(shapes)]


def check_covers(tensors: list[TensorSpec], partition: Partition) -> None:
    """Each element is in one piece, and the servers' ranges of the flat memory do not overlap."""
    seen: list[list[tuple[int, int]]] = [[] for _ in tensors]
    ends = []
    for share in partition.shares:
        for piece in share.pieces:
            item = tensors[piece.tensor].torch_dtype.itemsize
            seen[piece.tensor].append((piece.start, piece.stop))
            assert piece.offset == partition.offsets[piece.tensor] + piece.start * item
            assert share.begin <= piece.offset <= piece.offset + (piece.stop - piece.start) * item <= share.end
        if share.pieces:
            ends.append((share.begin, share.end))
    for tensor, ranges in zip(tensors, seen, strict=True):
        at = 0
        for start, stop in sorted(ranges):
            assert start == at
            at = stop
        assert at == tensor.elements
    for (_, end), (begin, _) in zip(sorted(ends), sorted(ends)[1:], strict=False):
        assert end <= begin


@given(SHAPES, st.integers(1, 6), DTYPES)
def test_servers_hold_the_same_number_of_bytes(shapes: list[tuple[int, ...]], servers: int, dtype: str) -> None:
    tensors = specs(shapes, dtype)
    partition = split(tensors, servers)
    check_covers(tensors, partition)
    sizes = balance(tensors, partition)
    fair = sum(sizes) / servers
    grain = 2 * GRAIN * tensors[0].torch_dtype.itemsize
    assert all(abs(size - fair) <= 0.03 * fair + grain for size in sizes)


@given(SHAPES, st.integers(1, 6))
def test_whole_tensors_stay_whole(shapes: list[tuple[int, ...]], servers: int) -> None:
    tensors = specs(shapes)
    partition = split(tensors, servers, whole=True)
    check_covers(tensors, partition)
    assert all(p.stop - p.start == tensors[p.tensor].elements for share in partition.shares for p in share.pieces)
    largest = max(tensor.bytes for tensor in tensors)
    sizes = balance(tensors, partition)
    assert max(sizes) <= sum(sizes) / servers + largest


def test_a_large_tensor_is_cut_and_the_balance_is_told() -> None:
    tensors = specs([(1000, 1000), (10,), (100, 100)])
    partition = split(tensors, 3)
    assert describe(tensors, partition) == (
        "server 0: 1.28 MiB, 1 tensor (1 cut); server 1: 1.28 MiB, 1 tensor (1 cut); "
        "server 2: 1.28 MiB, 3 tensors (1 cut)"
    )
    assert TensorSpec.of("x", torch.zeros(2, 3, dtype=torch.bfloat16)) == TensorSpec("x", "bfloat16", (2, 3))
