"""Only rank 0 writes to the script's files. Every other rank writes to a scratch folder of its own.

On such a rank the disk looks to the script as if its own writes had happened: it can read, rename, list and delete the
files that it wrote, and the files that it deleted are gone (see `overlay`). Only rank 0 changes the real files. So
`torch.save` followed by `torch.load`, or `if os.path.exists(checkpoint)`, takes the same branch on every worker,
whichever worker is first.

Covers Python's `open`, `os`, `shutil` and `sqlite3`, libraries in native code (see `writers`), and experiment trackers
(see `trackers`). Writes of child processes are not covered.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.script.output import trackers, writers
from paceline.script.output.in_step import InStep, replace_open
from paceline.script.output.overlay import Listing, Overlay
from paceline.script.output.real_files import are_real, real_files
from paceline.script.output.takeover import make_real
from paceline.script.seams.stage import Stage
from paceline.settings import cache_folders

# Not the script's files: devices, and the compilers' caches, which are shared with other processes.
SYSTEM = ("/dev/", "/proc/", "/sys/")
CACHES = ("torchinductor_", "triton", "torch_extensions")
HANDLES = ("dir_fd", "src_dir_fd", "dst_dir_fd")


class Voice:
    """The files of a rank other than 0."""

    def __init__(self, stage: Stage, scratch: Path, spare: Path | None = None, in_step: InStep | None = None) -> None:
        """`spare`: where its files go if the disk of `scratch` is full. `in_step`: waits for rank 0's files."""
        self.stage, self._in_step = stage, in_step
        self.overlay = Overlay(str(scratch), str(spare or ""))
        own = [os.path.join(folder, "") for folder in (scratch, spare) if folder is not None]
        self._not_ours = [*SYSTEM, *own, *(os.path.join(folder, "") for folder in cache_folders())]
        self._temporary = os.path.join(tempfile.gettempdir(), "")
        self._making_private, self._pid = False, os.getpid()
        self._private: set[str] = set()  # temporary files of this process

    def install(self) -> None:
        """Patches open, save, rename, … for the rest of this process."""
        layer = self.overlay
        replace_open(self._for_script_paths(builtins.open, self._opens))
        for method in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
            if (kept := getattr(method, "__defaults__", None)) and os.unlink in kept:
                unlink = lambda path: os.unlink(path)  # noqa: E731 - looks os.unlink up at call time
                method.__defaults__ = tuple(unlink if value is os.unlink else value for value in kept)
        self._replace("open", lambda path, flags, *a, mode=0o777: layer.descriptor(path, flags, *(a or (mode,))))
        self._replace("stat", lambda path, follow_symlinks=True: layer.stat(path, follow=follow_symlinks))
        self._replace("lstat", lambda path: layer.stat(path, follow=False))
        self._replace("access", layer.access)
        self._replace("mkdir", lambda path, mode=0o777: layer.mkdir(path, mode))
        self._replace("rmdir", layer.rmdir)
        self._replace("unlink", layer.remove)
        self._replace("remove", layer.remove)
        self._replace("listdir", self._names)
        self._replace("scandir", lambda path: Listing(self._entries(path)))
        self._replace("readlink", layer.readlink)
        self._replace("truncate", layer.truncate)
        self._replace("chdir", layer.chdir)
        for name in ("chmod", "chown", "utime", "setxattr", "removexattr"):
            self._replace(name, functools.partial(layer.change, name))
        for name in ("listxattr", "getxattr", "statvfs"):
            self._replace(name, functools.partial(layer.look, name))
        for name in ("rename", "replace"):
            setattr(os, name, self._renames(getattr(os, name)))
        for name, new in (("symlink", layer.symlink), ("link", layer.link)):
            setattr(os, name, self._links(getattr(os, name), new))
        shutil.rmtree = self._removes_trees(shutil.rmtree)  # type: ignore[assignment]
        tempfile.mkdtemp = self._makes_private(tempfile.mkdtemp)
        temporary: Any = tempfile
        temporary._mkstemp_inner = self._makes_private_file(temporary._mkstemp_inner)  # of all that make such files
        connect: Any = self._connects(sqlite3.connect)
        sqlite3.connect = sqlite3.dbapi2.connect = connect
        writers.install(self._place)
        trackers.install(os.path.join(self.overlay.root, "trackers"), self._is_silent)
        self.stage.group.follow(self._follow)
        if self.stage.group.members is not None:
            atexit.register(self._at_exit)  # before the script's own handlers, so it is called after them

    def _is_silent(self) -> bool:
        return not (self.stage.aside or self.stage.group.pulse.speaks)

    def _at_exit(self) -> None:
        """The script has ended, with all that it does at exit. Its files must have been written, also if the workers
        that are left have not met since worker 0 was lost. What is open still is moved, and closed later."""
        members = self.stage.group.members
        if members is not None and os.getpid() == self._pid and members.is_first_left():
            self._take_over()

    def _follow(self) -> None:
        """A worker is lost. Who is rank 0 now writes to the real files from now on."""
        if self.stage.group.rank == 0:
            self._take_over()

    def _take_over(self) -> None:
        if not self.stage.group.pulse.speaks:
            with real_files():
                make_real(self.overlay)
            self.stage.group.pulse.speaks = True

    def ours(self, path: Any) -> bool:
        """Whether this is a path of the script's files: not a file descriptor, not a system or cache path."""
        if self.stage.aside or self._making_private or self.stage.group.pulse.speaks or are_real():
            return False
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = os.path.abspath(os.fsdecode(path))
        if full in self._private or os.path.join(full, "").startswith(tuple(self._not_ours)):
            return False
        return not (full.startswith(self._temporary) and full[len(self._temporary) :].startswith(CACHES))

    def _place(self, path: Any, mode: str) -> Any:
        """The path that native code must open in place of this one."""
        if not self.ours(path):
            return path
        if mode == writers.FOLDER:
            return self.overlay.folder(path)
        if not set(mode) & set("wax+"):
            return self.overlay.seen(path)
        return self.overlay.changed(path, mode)

    # -- replacements for the functions that the script calls --------------------------------------------------------

    def _for_script_paths(self, plain: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
        """Calls `new` for the script's paths; `plain` for descriptors, directory handles, openers and other paths."""

        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = {"path": args[0]} if args else kwargs
            path = given.get("path", given.get("file", "."))
            handled = any(kwargs.get(name) is not None for name in (*HANDLES, "opener"))
            if handled or not self.ours("." if path is None else path):
                return plain(*args, **kwargs)
            rest = {key: value for key, value in kwargs.items() if key not in ("path", "file", *HANDLES)}
            return new("." if path is None else path, *args[1:], **rest)

        return call

    def _replace(self, name: str, new: Callable[..., Any]) -> None:
        setattr(os, name, self._for_script_paths(getattr(os, name), new))

    def _opens(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self._in_step is None or not set(mode) & set("wax+"):
            return self.overlay.open(file, mode, *args, **kwargs)
        own = self.overlay.changed(file, mode)
        return self._in_step.open(own, os.path.abspath(os.fsdecode(file)), mode, *args, **kwargs)

    def _names(self, path: Any) -> list[Any]:
        return [entry.name for entry in self._entries(path)]

    def _entries(self, path: Any) -> list[Any]:
        return self.overlay.entries(path, self.overlay.followed(path))

    def _renames(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def rename(src: Any, dst: Any, **handles: Any) -> None:
            source, target = self.ours(src), self.ours(dst)
            if any(value is not None for value in handles.values()) or not (source or target):
                plain(src, dst, **handles)
            elif target:
                (self.overlay.rename if source else self.overlay.move_in)(src, dst)
                if self._in_step is not None:
                    self._in_step.written(os.path.abspath(os.fsdecode(dst)))
            else:
                self.overlay.move_out(src, dst)

        return rename

    def _links(self, plain: Callable[..., Any], new: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if not self.ours(dst) or any(kwargs.get(name) is not None for name in HANDLES):
                plain(src, dst, *args, **kwargs)
            else:
                new(src, dst)

        return link

    def _connects(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """SQLite writes in native code, but takes the path in this call."""

        @functools.wraps(plain)
        def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("uri") or database in ("", ":memory:") or not self.ours(database):
                return plain(database, *args, **kwargs)
            return plain(self.overlay.changed(database, "a"), *args, **kwargs)

        return connect

    def _removes_trees(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def rmtree(path: Any, ignore_errors: bool = False, *args: Any, **kwargs: Any) -> None:
            if not self.ours(path):
                plain(path, ignore_errors, *args, **kwargs)
                return
            try:
                self.overlay.rmtree(path)
            except OSError:
                if not ignore_errors:
                    raise

        return rmtree

    def _makes_private(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A folder with a random name is private already: make the real one, so that child processes find it."""

        @functools.wraps(plain)
        def mkdtemp(*args: Any, **kwargs: Any) -> Any:
            self._making_private = True
            try:
                folder = plain(*args, **kwargs)
            finally:
                self._making_private = False
            self._not_ours.append(os.path.join(os.path.abspath(os.fsdecode(folder)), ""))
            return folder

        return mkdtemp

    def _makes_private_file(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """A file with a random name among the temporary ones is private, too: a compiler that reads it is another
        process. In a folder of the script's (a file that is renamed when it is whole) it would be seen by rank 0."""

        @functools.wraps(plain)
        def mkstemp(dir: Any, *args: Any, **kwargs: Any) -> Any:
            if not os.path.join(os.path.abspath(os.fsdecode(dir)), "").startswith(self._temporary):
                return plain(dir, *args, **kwargs)
            self._making_private = True
            try:
                descriptor, path = plain(dir, *args, **kwargs)
            finally:
                self._making_private = False
            self._private.add(os.path.abspath(os.fsdecode(path)))
            return descriptor, path

        return mkstemp
