"""The state of the git repository around a folder: commit, branch, and what was changed since."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import msgspec

CHANGES = "changes.diff"  # in the record
LIMIT = 5.0  # seconds that one call of git may take
MOST = 1 << 20  # bytes of the diff that are kept
MOST_STATUS = 1 << 20  # bytes of the list of changed files that are read
MOST_UNTRACKED = 100  # names of files that git does not know


class Tree(msgspec.Struct, kw_only=True):
    """A repository and its working tree at one moment."""

    root: str
    commit: str = ""  # empty: there is no commit yet
    branch: str = ""  # empty: none, the commit itself is checked out
    dirty: bool | None = None  # files that git knows were changed; None: git took too long
    changed: int = 0  # number of those files
    untracked: list[str] = []  # files and folders that git does not know, the first ones
    diff: str = ""  # the name of the file that holds the changes; empty: there are none
    cut: bool = False  # the diff was too large: its last files are left out


def look(folder: Path, *, ignoring: Path | None = None) -> tuple[Tree | None, bytes]:
    """The repository around this folder, None if there is none, and the changes since its commit. `ignoring`: the
    folder of the records, which is not counted as untracked."""
    found = _git(folder, "rev-parse", "--show-toplevel")
    if not found:
        return None, b""
    tree = Tree(root=_text(found))
    tree.commit = _text(_git(folder, "rev-parse", "--verify", "--quiet", "HEAD"))
    tree.branch = _text(_git(folder, "symbolic-ref", "--short", "--quiet", "HEAD"))
    status = _git(folder, "status", "--porcelain=v1", "-z", "--no-renames", most=MOST_STATUS)
    if status is None:
        return tree, b""
    lines = [line for line in status[:MOST_STATUS].decode(errors="replace").split("\0") if line]
    tree.changed = sum(not line.startswith("??") for line in lines)
    tree.dirty = tree.changed > 0
    names = [line[3:] for line in lines if line.startswith("??")]
    own = None if ignoring is None else ignoring.resolve()
    kept = [name for name in names if own is None or not own.is_relative_to(Path(tree.root, name).resolve())]
    tree.untracked = kept[:MOST_UNTRACKED]
    changes = b""
    if tree.dirty and tree.commit:
        # Neither the user's diff program nor a filter runs.
        words = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        changes = _git(folder, *words, most=MOST) or b""
        if len(changes) > MOST:
            tree.cut = True
            changes = changes[: max(changes.rfind(b"\ndiff --git ", 0, MOST) + 1, 0)]
        tree.diff = CHANGES if changes else ""
    return tree, changes


def _git(folder: Path, *words: str, most: int = 1 << 16) -> bytes | None:
    """The output of git, at most one byte more than `most`; None if git failed, took too long or is missing."""
    try:
        process = subprocess.Popen(
            ["git", "--no-optional-locks", "-C", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None
    timer = threading.Timer(LIMIT, process.kill)
    timer.daemon = True
    timer.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            told = process.stdout.read(most + 1)
        if len(told) > most:
            process.kill()
            process.wait()
            return told
        return told if process.wait() == 0 else None
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _text(told: bytes | None) -> str:
    return (told or b"").decode(errors="replace").strip()
