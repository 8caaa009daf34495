"""Processes as the kernel sees them: the state of a process, its descendants, and how to kill the whole tree.

The launcher uses it for a process that no longer answers: stopped by a signal, or stuck in a call outside Python.
"""

from __future__ import annotations

import os
import signal
import time

_FROZEN = ("T", "t")
_PATIENCE = 10.0  # seconds for killed processes to end: a process that waits for a disk ends only afterwards


def state_of(pid: int) -> str:
    """The kernel's letter: R runs, S sleeps, D waits for a disk or device, T is stopped; empty if the process ended."""
    found = _stat(pid)
    return found[0] if found is not None and found[0] not in "ZX" else ""


def is_frozen(state: str) -> bool:
    """Whether a process in this state was stopped by a signal (SIGSTOP, SIGTSTP, a debugger)."""
    return state in _FROZEN


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status") as file:
            caught = next(line.split()[1] for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught, 16) >> (number - 1) & 1)


def below(pid: int) -> list[int]:
    """The ids of all living descendants of a process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        found = _stat(int(name)) if name.isdigit() else None
        if found is not None:
            children.setdefault(found[1], []).append(int(name))
    found_below, todo = [], [pid]
    while todo:
        todo += (new := children.get(todo.pop(), []))
        found_below += new
    return [one for one in found_below if state_of(one)]


def end_tree(pid: int) -> None:
    """Kills a process and its descendants; waits up to 10 s until the descendants are gone. The process is stopped
    first, so that it starts no more processes and stays the parent of the orphans among its descendants."""
    _send(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _PATIENCE
    while (left := below(pid)) and time.monotonic() < deadline:
        for one in left:
            _send(one, signal.SIGKILL)
        time.sleep(0.01)
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name, in brackets, may hold any character.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state.decode(), int(parent)
