"""Where rows lie after a reshape, against torch's own reshape of a tensor whose values are the samples' numbers."""

from __future__ import annotations

from math import prod

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.script.rows.crossings import Split
from paceline.script.rows.layout import Layout


class Rank:
    """As much of a group as a layout looks at."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    """A shape, its dimension of samples, and another shape of the same size, which may merge or split dimensions."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    dim = draw(st.integers(0, len(shape) - 1))
    shape[dim] = draw(st.integers(2, 7))
    left, new = prod(shape), []
    while left > 1 and len(new) < 4:
        size = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        new.append(size)
        left //= size
    return shape, dim, [*new, left]


@given(reshapes(), st.integers(0, 1))
def test_own_rows_of_a_reshape_are_the_reshape_of_own_rows(case: tuple[list[int], int, list[int]], rank: int) -> None:
    shape, dim, new = case
    split = Split.of(Rank(rank, 2), shape[dim])  # type: ignore[arg-type]
    whole = torch.arange(prod(shape)).view(shape)
    layout = Layout(split, dim)
    local = layout.own(whole)
    found = layout.reshaped(shape, new)
    samples = torch.arange(shape[dim]).view([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)
    if found is None:  # then no dimension of the new shape has all samples, in equal parts
        assert not any(_counts_samples(samples.reshape(new), d, shape[dim]) for d in range(len(new)))
        return
    assert torch.equal(local.reshape(found.local_shape(new)), found.own(whole.reshape(new)))
    assert found.whole_shape(found.local_shape(new)) == torch.Size(new)


def _counts_samples(samples: torch.Tensor, dim: int, batch: int) -> bool:
    """Whether the sample's number depends on this dimension only, and on no other."""
    lines = samples.movedim(dim, 0).flatten(1)
    return bool((lines == lines[:, :1]).all()) and len(lines[:, 0].unique()) == batch
