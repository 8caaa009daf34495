"""Packed sequences: each worker packs its own rows; what looks into them is computed whole, with the reason."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn
from torch.nn.utils import rnn

from paceline.comm.group import Group


class Reader(nn.Module):
    """`look`: computes with the numbers inside the packed sequence."""

    def __init__(self, look: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.look, self.embed = look, nn.Linear(3, 4)
        self.gru = nn.GRU(4, 4, num_layers=2, dropout=dropout, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = rnn.pack_padded_sequence(self.embed(x), lengths, batch_first=True, enforce_sorted=False)
        if self.look:
            packed = rnn.PackedSequence(packed.data.tanh(), *packed[1:])
        steps, last = self.gru(packed)
        return rnn.pad_packed_sequence(steps, batch_first=True)[0], last[-1]


def read(group: Group | None, look: bool, dropout: float) -> Any:
    with nullcontext() if group is None else staged(group) as stage:
        torch.manual_seed(0)
        module, found = Reader(look, dropout).double(), list[Any]()
        for lengths in ([4, 2, 3, 1, 2], [2, 2, 1, 1, 3]):
            x = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
            steps, last = module(x, torch.tensor(lengths))
            (steps.pow(2).sum() + last.sum()).backward()
            grads = [p.grad.clone() for p in module.parameters()]
            found += [steps.detach().clone(), last.detach().clone(), x.grad, *grads]
        return found, "" if stage is None else " ".join(stage.notices)


def read_outside(group: Group | None, is_sorted: bool, dropout: float) -> Any:
    """With samples of equal lengths, which may be packed in any order: dropout is drawn in it."""
    with nullcontext() if group is None else staged(group) as stage:
        torch.manual_seed(0)
        lengths = torch.tensor([4, 4, 3, 3, 3, 1] if is_sorted else [3, 4, 1, 3, 4, 3])
        gru, found = nn.GRU(3, 4, num_layers=2, dropout=dropout).double(), list[Any]()
        for _ in range(2):
            x = torch.randn(4, 6, 3, dtype=torch.float64, requires_grad=True)
            steps, last = gru(rnn.pack_padded_sequence(x, lengths, enforce_sorted=is_sorted))
            (steps.data.pow(2).sum() + last.sum()).backward()
            found += [*(part.detach().clone() for part in (steps.data, steps.batch_sizes, last)), x.grad]
            found += [p.grad.clone() for p in gru.parameters()]
        return found, "" if stage is None else " ".join(stage.notices)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("dropout", "why"), [(0.0, ""), (0.5, "dropout for a packed sequence")])
def test_packed_arguments_are_cut_or_keep_their_order(pool: Any, is_sorted: bool, dropout: float, why: str) -> None:
    expected, _ = read_outside(None, is_sorted, dropout)
    for found, refusal in pool(2).run(read_outside, is_sorted, dropout):
        assert why in refusal
        assert why or refusal == ""
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("look", "dropout", "why"),
    [(False, 0.0, ""), (True, 0.0, "looks into a packed sequence"), (False, 0.5, "dropout for a packed sequence")],
)
def test_packed_sequences_are_split_or_say_why(pool: Any, look: bool, dropout: float, why: str, world: int) -> None:
    expected, _ = read(None, look, dropout)
    for found, refusal in pool(world).run(read, look, dropout):
        assert why in refusal
        assert why or refusal == ""
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
