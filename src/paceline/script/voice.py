"""One voice: only rank 0 writes to the script's files. Another rank's go to a scratch folder of its own.

To the script on such a rank the disk looks as if its own writes had happened: what it wrote it can read, rename, list
and delete again, and what it deleted is gone; the real files are rank 0's business. So `torch.save` followed by
`torch.load`, or `if os.path.exists(checkpoint)`, go the same way on every worker, whoever is first.

Covers what goes through Python's `open`, `os` and `shutil`, and `torch.save`. Libraries that write by themselves
(HDF5, Parquet, SQLite, safetensors) and child processes are not seen.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.script.stage import Stage

# Not the script's: devices, and the compilers' caches, whose files are handed to other processes.
SYSTEM = ("/dev/", "/proc/", "/sys/")
CACHES = ("torchinductor_", "triton", "torch_extensions")


class Voice:
    """The scratch folder of a rank that does not speak."""

    def __init__(self, stage: Stage, scratch: Path) -> None:
        self.stage = stage
        self.root = str(scratch)
        self.gone: set[str] = set()  # paths that the script has deleted
        self._plain: dict[str, Callable[..., Any]] = {}
        self._home = os.path.expanduser("~/.cache")
        self._private: list[str] = []  # folders under names that only this process knows
        self._making_private = False
        self._temporary = os.path.join(tempfile.gettempdir(), "")

    def install(self) -> None:
        """Every later open, save, rename, … of this process goes through here."""
        self._open = builtins.open
        builtins.open = io.open = self.open
        self.stage.voice = self.save_path
        changes: dict[str, Callable[..., Any]] = {
            "stat": self.stat,
            "lstat": self.stat,
            "mkdir": self.mkdir,
            "rmdir": self.remove,
        }
        changes |= {
            "unlink": self.remove,
            "remove": self.remove,
            "rename": self.rename,
            "replace": self.rename,
        }
        changes |= {"listdir": self.listdir, "scandir": self.scandir}
        for name, new in changes.items():
            self._plain[name] = getattr(os, name)
            setattr(os, name, self._seen(self._plain[name], new))
        for name in ("chmod", "utime", "access", "chown"):
            self._plain[name] = getattr(os, name)
            setattr(os, name, self._seen(self._plain[name], self._on_own(self._plain[name])))
        self._plain["open"], os.open = os.open, self.open_descriptor
        self._mkdtemp: Any = tempfile.mkdtemp
        tempfile.mkdtemp = self.mkdtemp  # type: ignore[assignment]
        self._rmtree = shutil.rmtree
        shutil.rmtree = self.rmtree  # type: ignore[assignment]

    # -- where a path leads ----------------------------------------------------------------------------------------

    def own(self, path: Any) -> str | None:
        """The path in the scratch folder; None where the path is not the script's."""
        if self.stage.aside or self._making_private or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        full = os.path.abspath(os.fsdecode(path))
        if full.startswith((*SYSTEM, self.root, self._home, *self._private)):
            return None
        if full.startswith(self._temporary) and full[len(self._temporary) :].startswith(CACHES):
            return None
        return self.root + full

    def save_path(self, target: Any) -> Any:
        """Where `torch.save` is to write."""
        own = self.own(target)
        return target if own is None else self._ready(target, own)

    def _has(self, own: str) -> bool:
        try:
            self._plain["lstat"](own)
        except OSError:
            return False
        return True

    def _is_gone(self, path: Any) -> bool:
        full = os.path.abspath(os.fsdecode(path))
        return any(full == gone or full.startswith(gone + os.sep) for gone in self.gone)

    def _ready(self, path: Any, own: str) -> str:
        """Makes the scratch file's folder, if the real or the scratch one exists, and says that the path lives."""
        folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        self._make_folders(os.path.dirname(own))
        self.gone.discard(os.path.abspath(os.fsdecode(path)))
        return own

    def _make_folders(self, folder: str) -> None:
        if not self._has(folder):
            self._make_folders(os.path.dirname(folder))
            self._plain["mkdir"](folder)

    def _copy_here(self, path: Any, own: str) -> None:
        """The real file's content, for what changes it in place."""
        if not self._has(own) and not self._is_gone(path):
            try:
                with self._open(path, "rb") as source, self._open(own, "wb") as target:
                    shutil.copyfileobj(source, target)
            except FileNotFoundError:
                pass

    # -- what the script calls -------------------------------------------------------------------------------------

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        own = self.own(file)
        if own is None:
            return self._open(file, mode, *args, **kwargs)
        if not set(mode) & set("wax+"):
            if not self._has(own) and self._is_gone(file):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(file))
            return self._open(own if self._has(own) else file, mode, *args, **kwargs)
        gone = self._is_gone(file)
        own = self._ready(file, own)
        if ("a" in mode or "+" in mode) and "w" not in mode and not gone:
            self._copy_here(file, own)
        return self._open(own, mode, *args, **kwargs)

    def open_descriptor(self, path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        own = self.own(path) if kwargs.get("dir_fd") is None else None
        if own is not None and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            own = self._ready(path, own)
            if not flags & os.O_TRUNC and not flags & os.O_EXCL:
                self._copy_here(path, own)
            return self._plain["open"](own, flags, *args, **kwargs)
        return self._plain["open"](own if own is not None and self._has(own) else path, flags, *args, **kwargs)

    def mkdtemp(self, *args: Any, **kwargs: Any) -> str:
        """A folder under a random name is this process's own: it is made for real, and child processes find it."""
        self._making_private = True
        try:
            self._private.append(self._mkdtemp(*args, **kwargs))
        finally:
            self._making_private = False
        return self._private[-1]

    def _seen(self, plain: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
        """`new` for the script's paths, `plain` for file descriptors, directory handles and others' paths."""

        def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            handles = any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))
            own = None if handles else self.own(path)
            return plain(path, *args, **kwargs) if own is None else new(path, own, *args, **kwargs)

        return call

    def _on_own(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, own: str, *args: Any, **kwargs: Any) -> Any:
            return plain(own if self._has(own) else path, *args, **kwargs)

        return call

    def stat(self, path: Any, own: str, *args: Any, **kwargs: Any) -> os.stat_result:
        if self._has(own):
            return self._plain["stat"](own, *args, **kwargs)
        if self._is_gone(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return self._plain["stat"](path, *args, **kwargs)

    def mkdir(self, path: Any, own: str, *args: Any, **kwargs: Any) -> None:
        if self._has(own):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        # A folder that is there already was made by rank 0 a moment ago, or rank 0 is about to fail.
        self._make_folders(self._ready(path, own))

    def remove(self, path: Any, own: str, *args: Any, **kwargs: Any) -> None:
        self.stat(path, own)
        if self._has(own):
            self._plain["rmdir" if os.path.isdir(own) else "unlink"](own)
        self.gone.add(os.path.abspath(os.fsdecode(path)))

    def rename(self, path: Any, own: str, target: Any, *args: Any, **kwargs: Any) -> None:
        self._copy_here(path, self._ready(path, own))
        new = self.own(target)
        if new is None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))
        self._plain["rename"](own, self._ready(target, new))
        self.gone.add(os.path.abspath(os.fsdecode(path)))

    def rmtree(self, path: Any, *args: Any, **kwargs: Any) -> None:
        own = self.own(path)
        if own is None:
            self._rmtree(path, *args, **kwargs)
            return
        if self._has(own):
            self._rmtree(own, ignore_errors=True)
        self.gone.add(os.path.abspath(os.fsdecode(path)))

    def listdir(self, path: Any, own: str) -> list[str]:
        # In the order of the disk, which is the one that rank 0 sees.
        return [entry.name for entry in self._entries(path, own)]

    def scandir(self, path: Any, own: str) -> Any:
        return _Listing(self._entries(path, own))

    def _entries(self, path: Any, own: str) -> list[Any]:
        found: dict[str, Any] = {}
        if not self._is_gone(path) and self._has(os.fsdecode(path)):
            with self._plain["scandir"](path) as entries:
                found = {e.name: e for e in entries if not self._is_gone(os.path.join(os.fsdecode(path), e.name))}
        if self._has(own):
            with self._plain["scandir"](own) as entries:
                found |= {entry.name: entry for entry in entries}
        elif not found:
            self.stat(path, own)
        return list(found.values())


class _Listing:
    """What os.scandir returns: an iterator that can be closed."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
