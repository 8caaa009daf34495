"""Standard input is one for all workers; the size of the terminal is the launcher's."""

from __future__ import annotations

import os
import sys
from typing import Any

from paceline.comm.group import Group
from paceline.script.output import terminal


def read_in_pieces(group: Group) -> list[Any]:
    """Rank 0's input is a pipe; every other worker has none."""
    kept, plain, size = os.dup(0), sys.stdin, os.get_terminal_size
    ours, theirs = os.pipe()
    os.dup2(ours, 0)
    if group.rank == 0:
        os.write(theirs, "0.1\nzwölf\n".encode() + b"x" * 9000 + b"\nlast")
    os.close(theirs)
    try:
        terminal.install(group, {1: (101, 33)})
        sys.stdin.reconfigure(encoding="utf-8")
        asked = [input(), sys.stdin.readline(), len(next(sys.stdin)), sys.stdin.read(), sys.stdin.read()]
        return [*asked, sys.stdin.fileno(), sys.stdin.isatty(), tuple(os.get_terminal_size())]
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(ours)
        sys.stdin, os.get_terminal_size = plain, size


def test_every_worker_reads_what_rank_0_is_given(pool: Any) -> None:
    assert pool(3).run(read_in_pieces) == [["0.1", "zwölf\n", 9001, "last", "", 0, False, (101, 33)]] * 3
