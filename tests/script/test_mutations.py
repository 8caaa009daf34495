"""Changes that a call makes to the containers among its arguments reach the script's own containers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.script import tree
from paceline.script.proof.mutations import Containers, Told


def write(b: Any) -> Any:
    b["y"] = b["x"] + 1
    return b


def pop(b: Any) -> Any:
    return b.pop("x"), b


def move(b: Any) -> Any:
    b["list"].insert(0, torch.zeros(1))
    b["list"].append(b["list"][1])
    return [b["list"]]


def change_object(b: Any) -> Any:
    b["object"].seen, b["object"].x = 3, b["x"]
    del b["object"].old
    return {"same": b["object"]}


def leave(b: Any) -> Any:
    return b["x"] * 2


def argument() -> dict[str, Any]:
    held = SimpleNamespace(x=torch.ones(2), old=1)
    return {"x": torch.arange(3.0), "list": [torch.ones(1), "a", 7], "object": held}


@pytest.mark.parametrize("call", [write, pop, move, change_object, leave])
def test_changes_are_those_of_a_plain_call(call: Callable[[Any], Any]) -> None:
    ours, theirs = argument(), argument()
    kept = ours["x"], ours["list"], ours["object"]
    expected = call(theirs)
    copy = tree.replace(((ours,), {}), lambda leaf: leaf)
    containers = Containers(copy)
    told = containers.told(call(*copy[0]))
    found = Containers(((ours,), {})).adopt(told) if isinstance(told, Told) else told
    assert isinstance(told, Told) is (call is not leave)
    assert repr(ours) == repr(theirs)
    assert repr(found) == repr(expected)
    assert (ours["list"], ours["object"]) == kept[1:]
    assert ours["list"] is kept[1]
    assert found is ours if expected is theirs else True


def test_a_container_that_the_call_returns_is_the_scripts_own() -> None:
    ours = argument()
    copy = tree.replace(((ours,), {}), lambda leaf: leaf)
    containers = Containers(copy)
    told = containers.told((torch.ones(1), copy[0][0], [copy[0][0]["list"]]))
    assert isinstance(told, Told)
    _, whole, (inner,) = Containers(((ours,), {})).adopt(told)
    assert whole is ours
    assert inner is ours["list"]
