"""A run in progress: the browser follows it."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.view.pages.runs import href
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Live, Note, Page


def there(record: Opened) -> bool:
    return record.state == "running"


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    if not there(record):
        ended = Note(
            text=f"This run is not in progress: {record.state}.", links=[("Dashboard", href("run", record.name))]
        )
        return Page(title="Live", blocks=[ended])
    blocks: list[Block] = [Live(source=href("follow", record.name))]
    if len(record.ranks) > 64:
        blocks.append(Note(text="Only the first 64 ranks are followed."))
    return Page(title="Live", blocks=blocks)
