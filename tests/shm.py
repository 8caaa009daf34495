"""Names in /dev/shm that this test run answers for. Other processes of the machine, and other processes of a test run
that is spread over cores, make names of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path


def shared_memory() -> set[str]:
    """All names but those whose maker is alive and not below this process: torch_PID_… says who that is."""
    return {name for name in os.listdir("/dev/shm") if not _is_anothers(name)}


def _is_anothers(name: str) -> bool:
    maker = re.match(r"torch_(\d+)_", name)
    if maker is None:
        return False
    pid, us = int(maker[1]), os.getpid()
    while pid not in (us, 0):
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False  # its maker is gone: nobody will remove it
    return pid != us
