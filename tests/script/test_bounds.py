"""Indices out of range are found before the kernel runs; ignored targets and negative indices pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from paceline.script.proof.bounds import CheckedIndices, require_sizes

TABLE = torch.randn(4, 3)
CASES: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {  # a function of an index, and the index's bound
    "cross_entropy": (lambda i: F.cross_entropy(TABLE, i), 3),
    "cross_entropy of pictures": (lambda i: F.cross_entropy(TABLE.view(1, 2, 2, 3)[:, :, :, :2], i.view(1, 2, 2)), 2),
    "nll_loss of one": (lambda i: F.nll_loss(TABLE[0], i[0]), 3),
    "embedding": (lambda i: F.embedding(i, TABLE), 4),
    "embedding_bag": (lambda i: F.embedding_bag(i.view(1, -1), TABLE), 4),
    "offsets of bags": (lambda i: F.embedding_bag(torch.zeros(3, dtype=torch.long), TABLE, i.sort().values), 4),
    "gather": (lambda i: TABLE.gather(0, i.view(-1, 1)), 4),
    "scatter": (lambda i: TABLE.scatter(1, i.view(-1, 1), 1.0), 3),
    "scatter_add_": (lambda i: TABLE.clone().scatter_add_(1, i.view(-1, 1), TABLE), 3),
    "index_select": (lambda i: TABLE.index_select(1, i), 3),
    "index_add": (lambda i: TABLE.index_add(0, i, torch.ones(4, 3)), 4),
    "brackets": (lambda i: TABLE[:, i], 3),
    "brackets after a mask": (lambda i: TABLE[torch.tensor([True] * 4), i], 3),
    "brackets assigned": (lambda i: TABLE.clone().__setitem__(i, 0.0), 4),
}


@pytest.mark.parametrize("name", CASES)
def test_an_index_out_of_range_is_found(name: str) -> None:
    function, bound = CASES[name]
    with CheckedIndices():
        function(torch.tensor([bound - 1, 0, 0, 1]))
        with pytest.raises(IndexError, match="index out of range: aten"):  # not the words of the CPU's kernel
            function(torch.tensor([bound, 0, 0, 1]))


def test_ignored_targets_and_negative_indices_pass() -> None:
    with CheckedIndices():
        F.cross_entropy(TABLE, torch.tensor([0, -100, 2, 1]))
        F.cross_entropy(TABLE, torch.tensor([0, 7, 2, 1]), ignore_index=7)
        assert torch.equal(TABLE[torch.tensor([-1])], TABLE[3:])
        assert TABLE[torch.tensor([], dtype=torch.long)].shape == (0, 3)
        with pytest.raises(IndexError):
            TABLE[torch.tensor([-5])]
        with pytest.raises(IndexError, match=r"aten\._embedding_bag.*indices up to"):
            F.embedding_bag(torch.tensor([0, 1, 2]), TABLE, torch.tensor([0, 2, 1]))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("segment_reduce", (torch.ones(5, 3), "sum")),
        ("native_batch_norm", (torch.ones(5, 3), torch.ones(3), torch.ones(3), torch.zeros(2), torch.ones(2))),
    ],
)
def test_a_kernel_that_would_read_beyond_its_memory_is_not_called(name: str, args: tuple[object, ...]) -> None:
    with pytest.raises(IndexError, match=name):
        require_sizes(name, args)


def test_a_batch_norm_of_fitting_sizes_is_called() -> None:
    require_sizes("native_batch_norm", (torch.ones(5, 3), None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5))
