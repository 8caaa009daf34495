"""A file that the script has just written is there, whole, when the ranks above 0 go on.

They wrote it into their own layers, where native code of libraries and child processes do not look: these read the real
file, which rank 0 writes. So rank 0 counts the files that it has written or renamed, by their paths, and the other
ranks of its host wait after each of theirs until rank 0 has done the same. Rank 0 waits for nobody: a file that it has
changed again, or removed, before another rank's native code reads it, is read as it is then.

Nothing here can hang. Names may differ between ranks (a process's number, the time): a rank goes on once rank 0 has
written as many files as itself; and after `PATIENCE` it never waits again.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import mmap
import os
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.imports import holders
from paceline.script.output.real_files import are_real
from paceline.script.state import StageState

PATIENCE = 10.0  # seconds that rank 0 may be late
NAMES = 0.2  # seconds after which as many files as one's own count, whatever their names
NAPS = (1e-4, 5e-3)  # seconds between two looks: the first one, and the longest
SLOTS = 4096  # of counts by path; the first one counts all


class InStep:
    """One worker's files, and the count of rank 0's. Every worker makes one before the script begins."""

    def __init__(self, stage: StageState, shared: Path, *, is_first: bool) -> None:
        """`shared`: a file that the workers of this host share."""
        self._stage, self._shared, self._pid = stage, shared, os.getpid()
        self.is_first = is_first
        self._own = [0] * SLOTS
        self._counts: Any = None
        self._waits = True
        self._plain_open: Any = builtins.open
        stage.group.follow(self._follow)
        if is_first:
            with contextlib.suppress(OSError):  # a full disk: the others wait once, in vain
                shared.parent.mkdir(parents=True, exist_ok=True)
                shared.write_bytes(bytes(4 * SLOTS))
                self._counts = self._mapped()

    def install(self) -> None:
        """Counts what rank 0 writes. The other ranks' layers count theirs."""
        replace_open(self._opens(builtins.open))
        for name in ("rename", "replace"):
            setattr(os, name, self._renames(getattr(os, name)))

    def open(self, file: Any, full: str, mode: str, *args: Any, **kwargs: Any) -> Any:
        """Opens a file of the script's as the built-in `open` does, and counts a written one when it is closed. `full`:
        the path that the script knows."""
        if not set(mode) & set("wax+"):
            return self._plain_open(file, mode, *args, **kwargs)
        return _open(self._plain_open, lambda: self.written(full), file, mode, *args, **kwargs)

    def written(self, full: str) -> None:
        """The script has written a file, or given it this name."""
        stage = self._stage
        if sys.is_finalizing() or os.getpid() != self._pid or stage.aside or stage.makes_samples() or are_real():
            return
        slot = 1 + zlib.crc32(full.encode(errors="replace")) % (SLOTS - 1)
        for place in (slot, 0):
            self._own[place] += 1
            if self.is_first and self._counts is not None:
                self._counts[place] = self._own[place]
        if not self.is_first and self._waits:
            self._wait(slot)

    def _follow(self) -> None:
        """A worker is lost, and it may be rank 0."""
        self._waits = False

    def _wait(self, slot: int) -> None:
        began, nap = time.monotonic(), NAPS[0]
        while not self._is_reached(slot):
            late = time.monotonic() - began
            if late > NAMES and self._is_reached(0):
                return
            if late > PATIENCE:
                self._waits = False
                return
            time.sleep(nap)
            nap = min(2 * nap, NAPS[1])

    def _is_reached(self, slot: int) -> bool:
        if self._counts is None:
            try:
                self._counts = self._mapped()
            except (OSError, ValueError):  # another host's, or not yet there
                return not self._stage.group.is_one_host
        return bool(self._counts[slot] >= self._own[slot])

    def _mapped(self) -> Any:
        with self._plain_open(self._shared, "r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), 4 * SLOTS)).cast("I")

    def _opens(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def opens(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if not isinstance(file, (str, bytes, os.PathLike)) or not isinstance(mode, str):
                return plain(file, mode, *args, **kwargs)
            return self.open(file, os.path.abspath(os.fsdecode(file)), mode, *args, **kwargs)

        return opens

    def _renames(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def rename(src: Any, dst: Any, **handles: Any) -> None:
            plain(src, dst, **handles)
            self.written(os.path.abspath(os.fsdecode(dst)))

        return rename


class _Counted(io.FileIO):
    """The innermost part of a file, which is closed last, and whoever closes it: the script or Python itself."""

    told: Callable[[], None] = staticmethod(lambda: None)

    def close(self) -> None:
        is_open = not self.closed
        super().close()
        if is_open:
            self.told()


def _open(
    plain: Callable[..., Any],
    told: Callable[[], None],
    file: Any,
    mode: str,
    buffering: int = -1,
    encoding: Any = None,
    errors: Any = None,
    newline: Any = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """What `open` gives, around a file that tells when it is closed."""
    binary, as_text = "b" in mode, (encoding, errors, newline)
    if (buffering == 0 and not binary) or (binary and (any(as_text) or "t" in mode)) or len(set(mode)) < len(mode):
        return plain(file, mode, buffering, *as_text, closefd, opener)  # raises
    raw = _Counted(file, mode.replace("t", ""), closefd, opener)
    try:
        by_lines = buffering == 1 or (buffering < 0 and raw.isatty())
        if buffering == 0:
            found: Any = raw
        else:
            size = buffering if buffering > 1 else max(io.DEFAULT_BUFFER_SIZE, getattr(raw, "_blksize", 0))
            found = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw, size)
            if not binary:
                found = io.TextIOWrapper(found, io.text_encoding(encoding, 3), errors, newline, by_lines)
                found.mode = mode
    except BaseException:
        raw.close()
        raise
    raw.told = told
    return found


def replace_open(new: Callable[..., Any]) -> None:
    """Replaces `open` also in modules that keep it under another name."""
    for module, name in holders(builtins.open):
        if module is not sys.modules["_io"]:
            setattr(module, name, new)
    builtins.open = io.open = new
    numpys: Any = sys.modules.get("numpy.lib._datasource")
    if numpys is not None:
        numpys._file_openers._file_openers[None] = new
