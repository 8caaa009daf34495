"""A function of own rows that raises on one worker raises on all, with plain Python's exception."""

from __future__ import annotations

from collections.abc import Callable

SCRIPT = """
    import torch, torch.nn.functional as F
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 2, 3, 0, 9])  # the last is no class
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for reduction in ("mean", "sum", "none"):
        try:
            F.cross_entropy(model(x), y, reduction=reduction)
        except IndexError as error:
            print(reduction, error)
    try:
        model(x).gather(1, y.unsqueeze(1))
    except RuntimeError as error:
        print("gather", str(error)[:25])
    loss = F.cross_entropy(model(x), y.clamp(max=3))
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f} {model.weight.grad.norm().item():.5f}")
"""


def test_all_workers_raise_what_one_meets(play: Callable[..., object]) -> None:
    found = play(SCRIPT, workers=2, gather_below=0).well
    lines = found.printed.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["mean", "sum", "none", "gather"]
    assert "Target 9 is out of bounds" in lines[0]
    assert len(lines) == 5
    assert found.log(1).splitlines() == lines
