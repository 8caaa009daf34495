"""Names in /dev/shm that this test run answers for. Other processes of the machine, and other processes of a test run
that is spread over cores, make names of their own."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path


def shared_memory() -> set[str]:
    """All names but those whose maker is alive and not below this process: torch_PID_… says who that is; the maker of
    any other name is a process that maps it."""
    return {name for name in os.listdir("/dev/shm") if not _is_anothers(name)}


def left_since(before: set[str]) -> set[str]:
    """New names that stay. A name whose maker was killed by a test beside this one goes a moment later."""
    deadline = time.monotonic() + 10
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _is_anothers(name: str) -> bool:
    maker = re.match(r"torch_(\d+)_", name)
    return any(_is_not_below_us(pid) for pid in ([int(maker[1])] if maker else _mapped_by(name)))


def _mapped_by(name: str) -> list[int]:
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{name}" in maps.read_text():
                found.append(int(maps.parent.name))
        except OSError:
            pass  # it has ended
    return found


def _is_not_below_us(pid: int) -> bool:
    us = os.getpid()
    while pid not in (us, 0):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False  # its maker is gone: nobody will remove it
    return pid != us
