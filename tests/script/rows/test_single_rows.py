"""A worker with a single row takes the same way as one with several, though its row is contiguous by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pool import Pools

from paceline.comm.group import Group
from paceline.script.rows.catalogue import Rows
from paceline.script.rows.crossings import Split
from paceline.script.rows.layout import Layout

WHOLE = torch.arange(3 * 4 * 5, dtype=torch.float64).view(3, 4, 5)
WAYS: dict[str, Callable[[torch.Tensor], Any]] = {
    "reshape of a part": lambda x: x[:, 1:].reshape(-1, 5),
    "view of a part": lambda x: x[:, 1:].contiguous().view(-1, 5),
    "contiguous": lambda x: x.chunk(2, dim=2)[0].contiguous().add_(1),
    "is it contiguous?": lambda x: torch.tensor(
        [x.is_contiguous(), x[:, 1:].is_contiguous(), x[..., :2].is_contiguous()]
    ),
    "like a part": lambda x: torch.zeros_like(x[:, 1:]) + x[:, 1:],
    "time first": lambda x: x.transpose(0, 1).reshape(-1, 5),
    "time first, copied": lambda x: x.transpose(0, 1).contiguous().view(-1, 5),
}


def gathered(group: Group, name: str) -> Any:
    """The result, the output itself after it, and the number of messages."""
    split = Split(group, (1, 2))
    own = WHOLE[:1] if group.rank == 0 else WHOLE[1:]
    x = Rows(own.clone(), Layout(split, 0))
    sent = group.pulse.collectives
    found = WAYS[name](x)
    return [torch.sort(found.flatten()).values.tolist(), x.flatten().tolist(), group.pulse.collectives - sent]


@pytest.mark.parametrize("name", WAYS)
def test_a_single_row_takes_no_way_of_its_own(name: str, pool: Pools) -> None:
    alone = WHOLE.clone()
    expected = WAYS[name](alone)
    first, second = pool(2).run(gathered, name)
    assert first == second
    assert first[:2] == [torch.sort(expected.flatten()).values.tolist(), alone.flatten().tolist()]
