"""The page of logs: the end of each worker's output."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.errors import RecordError
from paceline.reports.report import Sentence, Text
from paceline.view.records.record import Opened
from paceline.view.ui.blocks import Block, Page
from paceline.view.ui.links import href

TAIL = 64 << 10  # bytes


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    asked_for = asked.get("rank", "")
    rank = (
        int(asked_for)
        if asked_for.isdecimal() and len(asked_for) < 12 and int(asked_for) in record.ranks
        else record.ranks[0]
    )
    blocks: list[Block] = []
    if len(record.ranks) > 1 and "report" not in asked:
        links = [(f"rank {each}", f"{href('logs', record.name)}?rank={each}") for each in record.ranks[:128]]
        blocks.append(Sentence("Only rank 0 writes to the terminal; every worker's output is kept.", links=links))
    try:
        text, cut = tail(record, rank)
    except RecordError as error:
        blocks.append(Sentence(error.message, "bad", error.advice))
    else:
        title = f"Rank {rank}: the last {TAIL >> 10} KiB" if cut else f"Rank {rank}"
        blocks.append(Text(title, text or "(empty)"))
    return Page(title="Logs", blocks=blocks)


def tail(record: Opened, rank: int, most: int = TAIL) -> tuple[str, bool]:
    """The end of a worker's log, and whether its start is left out. Raises RecordError if it is not a regular file."""
    try:
        data, cut = record.folder.file(f"log.rank{rank}.txt").read_end(most)
    except OSError:
        return "", False
    return printable(data.decode(errors="replace")), cut


def printable(text: str) -> str:
    """The text without control characters. Of a line that carriage returns overwrote, the last version."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "".join(character for character in "\n".join(lines) if character in "\n\t" or character.isprintable())
