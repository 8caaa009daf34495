"""What the workers wrote: the end of each one's log."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.record.folder import log_path
from paceline.view.blocks import Block, Note, Page, Text
from paceline.view.opened import Opened
from paceline.view.pages.runs import href

TAIL = 64 << 10  # bytes


def there(record: Opened) -> bool:
    return any(log_path(record.folder, rank).is_file() for rank in record.ranks[:1])


def build(record: Opened, asked: Mapping[str, str]) -> Page:
    asked_for = asked.get("rank", "")
    rank = int(asked_for) if asked_for.isdecimal() and int(asked_for) in record.ranks else record.ranks[0]
    blocks: list[Block] = []
    if len(record.ranks) > 1 and "report" not in asked:
        links = [(f"rank {each}", f"{href('logs', record.name)}?rank={each}") for each in record.ranks[:128]]
        blocks.append(Note(text="Only rank 0 writes to the terminal; every worker's output is kept.", links=links))
    text, cut = tail(record, rank)
    title = f"Rank {rank}: the last {TAIL >> 10} KiB" if cut else f"Rank {rank}"
    blocks.append(Text(title=title, text=text or "(nothing)"))
    return Page(title="Logs", blocks=blocks)


def tail(record: Opened, rank: int, most: int = TAIL) -> tuple[str, bool]:
    """The end of a worker's log, and whether there was more."""
    path = log_path(record.folder, rank)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - most))
            data = file.read(most)
    except OSError:
        return "", False
    return printable(data.decode(errors="replace")), size > most


def printable(text: str) -> str:
    """Without the signs that move a terminal's cursor: of a line that was written over, what came last."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return "".join(sign for sign in "\n".join(lines) if sign in "\n\t" or sign.isprintable())
