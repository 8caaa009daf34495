"""A run in progress: the browser follows it."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.view.records.contents import shows
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Live, Note, Page
from paceline.view.ui.links import href


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    if not shows(record, "live"):
        ended = Note(
            text=f"This run is not in progress: {record.state}.", links=[("Dashboard", href("run", record.name))]
        )
        return Page(title="Live", blocks=[ended])
    blocks: list[Block] = [Live(source=href("follow", record.name))]
    if len(record.ranks) > 64:
        blocks.append(Note(text="Only the first 64 ranks are followed."))
    return Page(title="Live", blocks=blocks)
