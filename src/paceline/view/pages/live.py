"""A run in progress: the browser follows it."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.view.blocks import Block, Live, Note, Page
from paceline.view.opened import Opened
from paceline.view.pages.runs import href


def there(record: Opened) -> bool:
    return record.state == "running" and bool(record.run.workers)


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    blocks: list[Block] = [Live(source=href("follow", record.name))]
    if len(record.ranks) > 64:
        blocks.append(Note(text="Only the first 64 ranks are followed."))
    return Page(title="Live", blocks=blocks)
