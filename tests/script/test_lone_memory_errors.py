"""A worker that alone runs out of memory raises that: it neither gathers alone nor calls the script's hook again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.strategies.mesh import functions, split_output

Play = Callable[..., Any]
HOOK = """
import torch
from torch import nn
from paceline.settings import of_this_process

armed = []

def hook(grad):
    if armed:
        print("the hook is called", flush=True)
        if of_this_process().rank == 1:
            raise torch.OutOfMemoryError("no memory for this hook")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        if hidden.requires_grad:
            hidden.register_hook(hook)
        return self.second(hidden)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.randn(6, 3)).pow(2).mean()
    optimizer.zero_grad()
    armed[:] = [step] * (step == 3)
    loss.backward()
    optimizer.step()
"""


def test_a_hook_on_a_gradient_is_called_once(play: Play) -> None:
    played = play(HOOK)
    assert played.outcome.exit_code == 1
    assert "no memory for this hook" in played.outcome.message
    assert (played.record / "log.rank1.txt").read_text().count("the hook is called") == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_a_function_of_a_mesh_is_not_tried_on_the_whole_tensor(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The other workers do not gather: the gather would meet another collective, or nobody."""

    def full(*args: Any) -> None:
        raise error

    class Output:
        local = torch.ones(2)

    def gather_alone(*args: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(functions, "_as_shards", lambda args, kwargs: (args, kwargs))
    monkeypatch.setattr(functions, "_gathered", gather_alone)
    with pytest.raises(type(error)):
        functions._pointwise(full, "exp", (), {})
    output: Any = Output()
    with pytest.raises(type(error)):
        split_output._in_parts(full, next(iter(split_output.VIEWS)), output, (output,), {}, [])
