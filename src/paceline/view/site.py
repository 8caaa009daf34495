"""The pages of a record, in the order in which a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.view.blocks import Page
from paceline.view.opened import Opened
from paceline.view.pages import dashboard


@dataclass(frozen=True, slots=True)
class Kind:
    """`key` is the first part of its address. `there` says whether a record has what the page shows."""

    key: str
    title: str
    build: Callable[[Opened, Mapping[str, str]], Page]
    there: Callable[[Opened], bool] = lambda record: True
    in_report: bool = True


PAGES = (Kind("run", "Dashboard", dashboard.build),)


def pages_of(record: Opened) -> list[Kind]:
    """Those that have something to show."""
    return [page for page in PAGES if page.there(record)]
