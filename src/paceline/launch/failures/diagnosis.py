"""Explains exceptions of the script whose own message does not say what to do: shortages, dead loader processes."""

from __future__ import annotations

import os
import re
import signal
import time
import traceback
from multiprocessing import process
from typing import Any

from paceline.launch.failures import limits

_LOADERS = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
_PIDS = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")
_MOMENT = 5.0  # seconds that a crashed process may take to end: the kernel may write a core file
_WORDS = {"Killed": "SIGKILL", "Bus error": "SIGBUS", "Segmentation fault": "SIGSEGV", "Terminated": "SIGTERM"}
_ADVICE = {
    "SIGKILL": "If you did not kill it, the machine ran out of memory (see dmesg): use fewer loader processes "
    "(num_workers), fewer workers, or a smaller batch.",
    "SIGBUS": "Shared memory is full: enlarge /dev/shm (docker run --shm-size=8g), or use fewer loader processes "
    "(num_workers) or a smaller prefetch_factor.",
    "SIGSEGV": "A library that the dataset calls crashed: run with num_workers=0 to see where.",
}


def diagnose(error: BaseException) -> str:
    """The cause and what to type, to be shown below the traceback; empty if the cause is unknown."""
    links = _chain(error)
    for link in links:
        short = limits.shortage(link)
        if short is not None:
            return "\n".join(short)
    return _dead_loader(links)


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and not any(link is known for known in found):
        found.append(link)
        link = link.__cause__ or link.__context__
    return found


def _dead_loader(links: list[BaseException]) -> str:
    """Explains the death of a loader process. torch raises a RuntimeError that names the signal, or one whose cause
    names the signal; or torch fails on the closed connection before it has noticed the death."""
    texts = [str(link) for link in links if isinstance(link, RuntimeError)]
    named = next(filter(None, map(_PIDS.search, texts)), None)
    cut_off = any(
        isinstance(link, ConnectionError | EOFError | FileNotFoundError) and _in_loader(link) for link in links
    )
    if named is None and not cut_off:
        return ""
    killed = _killed_children()
    pids = [int(pid) for pid in named[1].split(",")] if named else list(killed)
    if not pids:
        return ""
    said = [name for words, name in _WORDS.items() for text in texts if f"signal: {words}" in text]
    name = next(iter(said or [killed[pid] for pid in pids if pid in killed]), "")
    how = f"was killed by {name}" if name else "ended unexpectedly"
    advice = _ADVICE.get(name, "Run with num_workers=0 to see its error where it happens.")
    return f"A process of the script's DataLoader (pid {', '.join(map(str, pids))}) {how}.\n{advice}"


def _in_loader(error: BaseException) -> bool:
    """Whether a loader's connection to its process failed. The dataset's own exceptions also pass through the loader,
    but their innermost frame is not in multiprocessing."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_LOADERS in file for file in files) and f"{os.sep}multiprocessing{os.sep}" in files[-1]


def _killed_children() -> dict[int, str]:
    """Child processes of multiprocessing that a signal ended: process id → name of the signal."""
    children: Any = list(getattr(process, "_children", ()))
    until = time.monotonic() + _MOMENT
    while True:  # a process closes its connections before its exit code is available
        ended = {child.pid: child.exitcode for child in children}
        if not all(code is None for code in ended.values()) or not ended or time.monotonic() > until:
            break
        time.sleep(0.01)
    return {pid: signal.Signals(-code).name for pid, code in ended.items() if code is not None and code < 0}
