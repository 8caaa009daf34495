"""Numbers that Python reads inside a call: those that all rows decide are the whole batch's on every worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn

from paceline.comm.group import Group

PADDED, FULL = [4, 2, 4, 3, 4], [4, 4, 4, 4, 4]  # lengths of five sequences
WITHOUT_LONG, SHORT = [3, 2, 3, 3, 1], [1, 1, 1, 1, 2]


class Reading(nn.Module):
    """`read` gives a number, by which the output is scaled; with a negative one another layer computes it."""

    def __init__(self, read: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]) -> None:
        super().__init__()
        self.layer, self.other, self.read = nn.Linear(3, 3), nn.Linear(3, 3), read

    def forward(self, x: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        number = self.read(x, mask, lengths)
        x = x.cumsum(1)  # so that steps of time are no samples
        return (self.layer if number > 0 else self.other)(x) * mask[..., None] * lengths[:, None, None] * number


def sign(flag: Any) -> float:
    return 1.0 if flag else -1.0


JOINT: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]] = {
    "no padding": lambda x, mask, lengths: sign(mask.all()),
    "no padding, counted": lambda x, mask, lengths: sign(mask.sum() == mask.numel()),
    "some padding, counted": lambda x, mask, lengths: sign(mask.sum() < mask.numel()),
    "none is long": lambda x, mask, lengths: sign((lengths > 3).sum() == 0),
    "any padding": lambda x, mask, lengths: sign((~mask).any().item()),
    "any padding, turned round": lambda x, mask, lengths: sign(~(~mask).any()),
    "the longest": lambda x, mask, lengths: lengths.max().item(),
    "the longest above a limit": lambda x, mask, lengths: sign(lengths.max() > 3),
    "the shortest below a limit": lambda x, mask, lengths: sign(lengths.amin() <= 2),
    "all short": lambda x, mask, lengths: sign(lengths.max() < 4),
    "the longest of the maxima": lambda x, mask, lengths: int(mask.sum(1).amax(0)),
    "a length, plus one": lambda x, mask, lengths: int(lengths.max() + 1),
    "a count": lambda x, mask, lengths: 1 / mask.sum().item(),
    "a sum": lambda x, mask, lengths: float(x.detach().sum()),
    "a mean": lambda x, mask, lengths: x.detach().mean().item(),
    "a number that is none": lambda x, mask, lengths: sign(not torch.isnan(x).any()),
    "several": lambda x, mask, lengths: sign(mask.all()) * int(lengths.max()) / float(mask.sum()),
}
# Of these the workers' own say nothing of all rows'.
APART: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]] = {
    "a deviation": lambda x, mask, lengths: x.detach().std().item(),
    "the first row": lambda x, mask, lengths: x.detach()[0, 0, 0].item(),
    "a place that all have": lambda x, mask, lengths: sign(mask.any(0).all()),
    "a place that one has in all rows": lambda x, mask, lengths: sign(mask.all(0).any()),
    "equal to another count": lambda x, mask, lengths: sign(mask.sum() == 17),
    "a large float, which may be none": lambda x, mask, lengths: sign(x.max() > 1.0),
    "the sign of a maximum": lambda x, mask, lengths: sign((x.max() * -1) > 0),
    "as a flag": lambda x, mask, lengths: sign(bool((lengths - 3).max().to(torch.bool))),
}


def called(read: Callable[..., float]) -> list[Any]:
    torch.manual_seed(0)
    module, found = Reading(read).double(), list[Any]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step, lengths in enumerate([PADDED, FULL, SHORT, FULL, PADDED, PADDED, WITHOUT_LONG, SHORT, FULL, FULL]):
        x, counts = torch.randn(5, 4, 3, dtype=torch.float64), torch.tensor(lengths)
        if step == 5:
            x[3, 1, 1] = float("nan")
        output = module(x.requires_grad_(), torch.arange(4) < counts[:, None], counts)
        optimizer.zero_grad()
        output.nan_to_num().pow(2).sum().backward()
        norm = sum(float(p.grad.nan_to_num().abs().sum()) for p in module.parameters() if p.grad is not None)
        found.append([float(output.detach().nan_to_num().sum()), norm, float(x.grad.nan_to_num().abs().sum())])
        for p in module.parameters():
            if p.grad is not None:
                p.grad.nan_to_num_()
        optimizer.step()
    return found


def in_slices(group: Group, kind: str, name: str) -> tuple[list[Any], str]:
    with staged(group) as stage:
        found = called({"joint": JOINT, "apart": APART}[kind][name])
        refusal = stage.views.refusal
    return found, "" if refusal is None else refusal.message


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("name", JOINT)
def test_a_number_that_all_rows_decide_is_read_jointly(pool: Any, name: str, world: int) -> None:
    expected = called(JOINT[name])
    for found, refusal in pool(world).run(in_slices, "joint", name):
        assert refusal == ""
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", APART)
def test_any_other_number_ends_the_proof(pool: Any, name: str, world: int) -> None:
    expected = called(APART[name])
    for found, refusal in pool(world).run(in_slices, "apart", name):
        assert "its Python code reads a value that depends on samples" in refusal
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-9)


class Loop(nn.Module):
    """As many steps as the longest sequence has: each length has operations of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[:, 0])
        for t in range(int(lengths.max())):
            h = torch.where((t < lengths)[:, None], torch.tanh(self.cell(x[:, t] + h)), h)
        return h


def looped(group: Group | None) -> Any:
    def run() -> list[float]:
        torch.manual_seed(1)
        module = Loop().double()
        lengths = [PADDED, WITHOUT_LONG, SHORT, PADDED, WITHOUT_LONG, SHORT, FULL]
        return [
            float(module(torch.randn(5, 4, 3, dtype=torch.float64), torch.tensor(n)).detach().sum()) for n in lengths
        ]

    if group is None:
        return run()
    with staged(group) as stage:
        return run(), stage.views.refusal is None


def test_each_number_of_steps_has_a_proof_of_its_own(pool: Any) -> None:
    expected = looped(None)
    for found, is_split in pool(2).run(looped):
        assert is_split
        assert found == pytest.approx(expected, rel=1e-9)
