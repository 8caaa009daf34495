"""Strategies as people type them."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.axes import Axes
from paceline.errors import UsageError
from paceline.script.seams.strategy import Strategy
from paceline.strategies import catalog
from paceline.strategies.catalog import CATALOG, StrategyEntry


@pytest.fixture
def toy(monkeypatch) -> StrategyEntry:
    entry = StrategyEntry(
        name="toy",
        home="one:OneDevice",
        summary="for this test",
        arguments={"count": 2, "rate": 0.5, "on": False, "layout": "", "schedule": ("gpipe", "1f1b")},
        workers=lambda given: int(given["count"]),
    )
    monkeypatch.setitem(CATALOG, "toy", entry)
    return entry


@pytest.mark.parametrize("name", CATALOG)
def test_every_strategy_can_be_loaded_and_has_its_name(name: str) -> None:
    file, kind = CATALOG[name].home.split(":")
    made = getattr(importlib.import_module(f"paceline.strategies.{file}"), kind)
    assert issubclass(made, Strategy)
    assert made.name == name
    assert isinstance(catalog.load(name), made)


def test_arguments_have_the_types_of_their_defaults(toy) -> None:
    asked = catalog.parse('toy(count=3, rate=1e-2, on=yes, layout="a:b, c:d", schedule=1f1b)')
    assert dict(asked.arguments) == {"count": 3, "rate": 0.01, "on": True, "layout": "a:b, c:d", "schedule": "1f1b"}
    assert asked.workers == 3
    assert catalog.parse(str(asked)) == asked
    assert catalog.parse("toy").workers == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("ring", "there is no strategy 'ring'"),
        ("toy(count=3", "closing parenthesis"),
        ("toy(speed=3)", "toy has no argument 'speed'"),
        ("toy(count=x)", "count=x is not a whole number"),
        ("toy(count=1.5)", "count=1.5 is not a whole number"),
        ("toy(schedule=zb)", "schedule=zb is not one of gpipe, 1f1b"),
        ("toy(on=maybe)", "on=maybe is not true or false"),
        ("toy(3)", "'3' is not of the form argument=value"),
    ],
)
def test_wrong_ones_are_told_what_there_is(toy, typed: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        catalog.parse(typed)
    assert said in raised.value.message
    assert raised.value.advice


def test_one_spelling_for_replicas_of_a_pipeline() -> None:
    strategy = catalog.load("mesh(data=2,pipe=2)")
    assert (strategy.name, strategy.axes(4)) == ("mesh", Axes(pipe=2, data=2))
    assert catalog.parse("mesh(data=2,pipe=2)").workers == 4
    assert catalog.load("mesh(pipe=2)").axes(6) == Axes(pipe=2, data=3)
    assert catalog.parse("mesh(model=2,pipe=2)").multiple == 4
    with pytest.raises(UsageError, match="at least one worker"):
        catalog.parse("mesh(pipe=0)")


def test_a_shell_completes_names_then_arguments(toy) -> None:
    assert "mirrored" in [text for text, _ in catalog.complete("mi")]
    offered = [text for text, _ in catalog.complete("toy(count=3,s")]
    assert offered == ["toy(count=3,schedule=gpipe", "toy(count=3,schedule=1f1b"]


@given(st.tuples(*[st.integers(1, 3)] * 4), st.data())
def test_workers_lie_on_a_grid(sizes: tuple[int, ...], data) -> None:
    axes = Axes(*sizes)
    rank = data.draw(st.integers(0, axes.world - 1))
    assert axes.members(rank, "pipe", "data", "shard", "tensor") == tuple(range(axes.world))
    for axis in ("pipe", "data", "shard", "tensor"):
        line = axes.members(rank, axis)
        assert len(line) == getattr(axes, axis)
        assert line[axes.coordinate(rank, axis)] == rank
    assert axes.members(rank, "tensor") == tuple(
        range(min(axes.members(rank, "tensor")), max(axes.members(rank, "tensor")) + 1)
    )
