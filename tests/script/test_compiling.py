"""What torch.compile sees of a script that runs on a stage: the script's own lines."""

from __future__ import annotations

import torch
import torch._dynamo  # before any seam is found, as in a zygote that has served before
from staged import lone_group, staged
from torch import nn
from torch._dynamo.eval_frame import _debug_get_cache_entry_list


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).relu()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Inner(), Inner())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x) + 1


def watched() -> str:
    """All that the compiled graphs of the model are guarded by."""
    return "\n".join(str(entry.guard_manager) for entry in _debug_get_cache_entry_list(Outer.forward.__code__))


def test_no_line_of_ours_is_traced_and_no_state_of_ours_is_watched() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3)
    with staged(lone_group()):
        model = Outer()
        plain = model(x)
        model.compile(backend="eager")
        assert torch.equal(model(x), plain)
        assert "parts" in watched()
        assert "Stage" not in watched()
        assert "paceline" not in watched()


def test_when_the_seams_are_gone_it_is_as_before() -> None:
    torch._dynamo.reset()
    with staged(lone_group()):
        model = Outer()
        model.compile(backend="eager")
        model(torch.randn(2, 3))
    torch._dynamo.reset()
    model = Outer()
    model.compile(backend="eager")
    model(torch.randn(2, 3))
    assert "parts" in watched()
    assert "__call__" not in watched()


def test_a_call_that_the_script_has_replaced_is_traced() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3)
    with staged(lone_group()):
        ours = nn.Module.__call__
        try:

            def __call__(self: nn.Module, *args: object) -> object:
                return ours(self, *args) * 2

            nn.Module.__call__ = __call__  # type: ignore[method-assign,assignment]
            model = Outer()
            plain = model(x)
            model.compile(backend="eager")
            assert torch.equal(model(x), plain)
        finally:
            nn.Module.__call__ = ours  # type: ignore[method-assign]
