"""Mods as people type them."""

from __future__ import annotations

import ast
import importlib

import pytest

from paceline.errors import UsageError
from paceline.mods import catalog
from paceline.mods.catalog import CATALOG, parse


def test_a_mod_without_its_value_gets_the_first() -> None:
    asked = parse(["precision", "tf32", "threads=3"])
    assert [str(one) for one in asked] == ["precision=bf16", "tf32", "threads=3"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["speed"], "no mod 'speed'"),
        (["precision=bf8"], "takes bf16, fp16"),
        (["tf32=yes"], "takes no value"),
        (["workers=0"], "a number from 1"),
        (["workers=many"], "a number from 1"),
        (["threads=0"], "values like 2"),
        (["loader=2:0"], "values like 2"),
        (["tf32", "tf32"], "twice"),
        (["batch"], "values like 512"),
        (["batch=x0"], "values like 512"),
        (["batch=0"], "values like 512"),
        (["batch=x0.0:linear"], "values like 512"),
        (["batch=512:cubic"], "values like 512"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said(asked: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(asked)


@pytest.mark.parametrize("name", CATALOG)
def test_each_mod_says_what_it_changes_when_it_applies_what_it_breaks_and_how_to_keep_it(name: str) -> None:
    module = importlib.import_module(f"paceline.mods.{name}")
    text = module.__doc__ or ""
    assert all(word in text for word in ("Changes:", "Applies", "Can break:", "By hand:")), name
    ast.parse("\n".join(line.strip() for line in text.split("By hand:")[1].splitlines() if not line.endswith(":")))


def test_every_entry_can_be_loaded() -> None:
    for name, entry in CATALOG.items():
        value = "=2" if entry.values == ("N",) else f"={entry.values[0]}" if entry.pattern else ""
        assert hasattr(catalog.load(parse([name + value])[0]), "on_stage")
