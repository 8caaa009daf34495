"""A worker's private layer over the real files: its writes, renames and deletions happen in a scratch folder.

Through the layer, the real files look as if those changes had been made to them. The real files may change at any
moment, because rank 0 runs the same lines on them. A file that did not exist when the run began was made by rank 0 and
does not count as existing; a file that no longer exists was deleted by rank 0. (If it never existed, rank 0 fails, and
that ends the run.)
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any

from paceline.script.output.room import copy_tree, free_bytes

HOPS = 40  # symbolic links followed before they count as a loop
ROOM = 1 << 30  # bytes: with less, the layer looks for a roomier disk
PATIENCE = 10.0  # seconds that rank 0 may take to make a folder that this worker has made in its layer


class Overlay:
    """The layer. Paths are given as the script wrote them; an `own` path lies in the layer's folder."""

    def __init__(self, root: str, spare: str = "") -> None:
        """`spare`: where the layer goes on if the disk of `root` is full or can no longer be written."""
        self.root, self._spare = root, spare
        self.began = process_start()  # earlier than rank 0's script, which begins once all workers are ready
        self.gone: set[str] = set()  # real paths that are hidden, with all paths below them
        # The functions as they were before this layer was installed.
        self._open, self._os = builtins.open, {name: getattr(os, name) for name in dir(os)}
        self._rmtree = shutil.rmtree

    # -- where things are ------------------------------------------------------------------------------------------

    def own(self, full: str) -> str:
        return self.root + full

    def where(self, full: str) -> str | None:
        """The path that holds what the script sees under this path; None if the script sees nothing there."""
        if self._exists(self.own(full)):
            return self.own(full)
        return full if not self._hidden(full) and self._exists(full) else None

    def followed(self, path: Any) -> str:
        """The full path behind the layer's own symbolic links; the system follows those of the real files."""
        full = _full(path)
        for _ in range(HOPS):
            try:
                target = self._os["readlink"](self.own(full))
            except OSError:
                return full
            full = os.path.normpath(os.path.join(os.path.dirname(full), target))
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(path))

    def is_dir(self, full: str) -> bool:
        where = self.where(full)
        return where is not None and stat.S_ISDIR(self._os["stat"](where).st_mode)

    def _hidden(self, full: str) -> bool:
        while full not in self.gone:
            above = os.path.dirname(full)
            if above == full:
                return False
            full = above
        return True

    def _is_old(self, full: str) -> bool:
        """Whether a real file has existed, unchanged, since before the run."""
        return not self._hidden(full) and self._exists(full) and self._os["lstat"](full).st_ctime < self.began

    def _exists(self, path: str) -> bool:
        try:
            self._os["lstat"](path)
        except OSError:
            return False
        return True

    def _found(self, path: Any, full: str) -> str:
        where = self.where(full)
        if where is None:
            raise self._nothing_at(path, full)
        return where

    def _nothing_at(self, path: Any, full: str) -> OSError:
        above = os.path.dirname(full)
        while self.where(above) is None:
            above = os.path.dirname(above)
        return _error(errno.ENOENT if self.is_dir(above) else errno.ENOTDIR, path)

    def _was_deleted_by_rank_0(self, path: Any, full: str) -> bool:
        """Whether the path does not exist because rank 0 may have deleted it, and not by a mistake of the script."""
        if self.where(full) is not None:
            return False
        nothing = self._nothing_at(path, full)
        if self._hidden(full) or nothing.errno == errno.ENOTDIR:
            raise nothing
        return True

    # -- creating paths in the layer -------------------------------------------------------------------------------

    def ready(self, path: Any, full: str) -> str:
        """The own path, in a folder that exists in the layer."""
        folder = os.path.dirname(full)
        if not self.is_dir(self.followed(folder)):
            raise self._nothing_at(path, full)
        self._find_room()
        self._make_folders(os.path.dirname(self.own(full)))
        return self.own(full)

    def _find_room(self) -> None:
        """Moves the layer to its spare folder if it has no room where it is: the script's writes must not fail on this
        rank because the record's disk is full."""
        if not self._spare or (free := free_bytes(self._os, os.path.dirname(self.root))) >= ROOM:
            return
        spare = self._spare
        if free_bytes(self._os, os.path.dirname(spare)) <= free:
            return
        self._spare, before = "", self.root
        if self._exists(before):
            copy_tree(self._os, self._open, before, spare)
        self.root = spare

    def _make_folders(self, folder: str) -> None:
        if not self._exists(folder):
            self._make_folders(os.path.dirname(folder))
            with contextlib.suppress(FileExistsError):  # the workers' layers share the folders above their roots
                self._os["mkdir"](folder)

    def bring_up(self, path: Any, full: str, *, only_old: bool = False) -> str:
        """The own copy of a file, or of a folder with all entries seen in it, for a call that changes it."""
        own = self.ready(path, full)
        if self.is_dir(full):
            self._make_folders(own)
            for name in [entry.name for entry in self.entries(full, full)]:
                self.bring_up(path, os.path.join(full, name))
        elif not self._exists(own) and (self._is_old(full) if only_old else not self._hidden(full)):
            try:
                with self._open(full, "rb") as source, self._open(own, "wb") as target:
                    shutil.copyfileobj(source, target)
            except FileNotFoundError:
                pass
        return own

    # -- files -----------------------------------------------------------------------------------------------------

    def open(self, file: Any, mode: str, *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+"):
            return self._open(self.changed(file, mode), mode, *args, **kwargs)
        self._found(file, self.followed(file))
        return self._open(self.seen(file), mode, *args, **kwargs)

    def seen(self, file: Any) -> Any:
        """The path of what the script sees under this one; a path where nothing is, if it sees nothing."""
        full = self.followed(file)
        where = self.where(full) or self.own(full)
        return file if where == _full(file) else where

    def changed(self, file: Any, mode: str) -> str:
        """The own path of a file that is about to be opened with this mode, one that writes."""
        full = self.followed(file)
        if "r" in mode:
            self._found(file, full)
            return self.bring_up(file, full)
        return self.for_writing(file, full, keep="a" in mode, new="x" in mode or mode == "w-")

    def folder(self, path: Any) -> str:
        """The own path of a folder into which files are about to be written."""
        full = self.followed(path)
        return self.bring_up(path, full) if self.is_dir(full) else self.ready(path, full)

    def for_writing(self, path: Any, full: str, *, keep: bool = False, new: bool = False) -> str:
        """The own path of a file that is about to be written. `keep`: with its present content. `new`: the file must
        not exist."""
        if self.is_dir(full):
            raise _error(errno.EISDIR, path)
        if new and self._is_old(full):
            raise _error(errno.EEXIST, path)
        return self.bring_up(path, full, only_old=True) if keep else self.ready(path, full)

    def descriptor(self, path: Any, flags: int, *args: Any) -> int:
        full = self.followed(path)
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return self._os["open"](self._found(path, full), flags, *args)
        if not flags & os.O_CREAT:
            self._found(path, full)
            return self._os["open"](self.bring_up(path, full), flags, *args)
        new = bool(flags & os.O_EXCL)
        own = self.for_writing(path, full, keep=not flags & os.O_TRUNC and not new, new=new)
        return self._os["open"](own, flags, *args)

    def remove(self, path: Any) -> None:
        full = _full(path)
        if self._was_deleted_by_rank_0(path, full):
            return
        if stat.S_ISDIR(self._os["lstat"](self._found(path, full)).st_mode):
            raise _error(errno.EISDIR, path)
        if self._exists(self.own(full)):
            self._os["unlink"](self.own(full))
        self.gone.add(full)

    def truncate(self, path: Any, length: int) -> None:
        self._os["truncate"](self.bring_up(path, self.followed(path)), length)

    def change(self, name: str, path: Any, *args: Any, **kwargs: Any) -> None:
        """chmod, chown, utime …: changes the own copy; a real folder is changed by rank 0 only."""
        full = self.followed(path)
        self._found(path, full)
        if self._exists(self.own(full)) or not self.is_dir(full):
            self._os[name](self.bring_up(path, full), *args, **kwargs)

    # -- links -----------------------------------------------------------------------------------------------------

    def symlink(self, source: Any, path: Any) -> None:
        if self._is_old(_full(path)):
            raise _error(errno.EEXIST, path)
        self._os["symlink"](source, self.ready(path, _full(path)))

    def link(self, source: Any, path: Any) -> None:
        own, where = self.ready(path, _full(path)), self._found(source, self.followed(source))
        if self._exists(own) or self._is_old(_full(path)):
            raise _error(errno.EEXIST, path)
        with self._open(where, "rb") as content, self._open(own, "wb") as target:
            shutil.copyfileobj(content, target)

    def readlink(self, path: Any) -> Any:
        target = self._os["readlink"](self._found(path, _full(path)))
        return os.fsencode(target) if isinstance(path, bytes) else target

    # -- folders ---------------------------------------------------------------------------------------------------

    def mkdir(self, path: Any, mode: int) -> None:
        full = _full(path)
        if self._exists(self.own(full)) or self._is_old(full):
            raise _error(errno.EEXIST, path)
        self._os["mkdir"](self.ready(path, full), mode)

    def rmdir(self, path: Any) -> None:
        full = _full(path)
        if self._was_deleted_by_rank_0(path, full):
            return
        if not self.is_dir(full):
            raise _error(errno.ENOTDIR, path)
        if self.entries(full, full):
            raise _error(errno.ENOTEMPTY, path)
        if self._exists(self.own(full)):
            self._os["rmdir"](self.own(full))
        self.gone.add(full)

    def rmtree(self, path: Any) -> None:
        full = _full(path)
        if self._was_deleted_by_rank_0(path, full):
            return
        if not self.is_dir(full):
            raise _error(errno.ENOTDIR, path)
        self._rmtree(self.own(full), ignore_errors=True)
        self.gone.add(full)

    def chdir(self, path: Any) -> None:
        """Changes to the real folder, which rank 0 has made or will make soon: waits for it."""
        end = time.monotonic() + PATIENCE
        while self.is_dir(_full(path)) and not self._exists(_full(path)) and time.monotonic() < end:
            time.sleep(0.005)
        self._os["chdir"](path)

    def entries(self, path: Any, full: str) -> list[Any]:
        """The entries of a folder in the order of the disk, which rank 0 sees too; own entries come last."""
        self._found(path, full)
        found: dict[str, Any] = {}
        own = self.own(full)
        if not self._hidden(full) and (not self._exists(own) or os.path.isdir(full)) and self._exists(full):
            with self._os["scandir"](path) as entries:
                inside = [(os.fsdecode(entry.name), entry) for entry in entries]
                found = {name: entry for name, entry in inside if os.path.join(full, name) not in self.gone}
        if self._exists(own):
            with self._os["scandir"](own) as entries:
                found |= {entry.name: OverlayEntry(path, entry) for entry in entries}
        return list(found.values())

    # -- renaming --------------------------------------------------------------------------------------------------

    def rename(self, path: Any, target: Any) -> None:
        full, new = _full(path), _full(target)
        own = self.ready(target, new)
        if self._was_deleted_by_rank_0(path, full):
            self.gone.add(full)
            return
        if full == new:
            return
        folder = self.is_dir(full)
        if folder and new.startswith(full + os.sep):
            raise _error(errno.EINVAL, path)
        if self.where(new) is not None:
            if self.is_dir(new) != folder:
                raise _error(errno.ENOTDIR if folder else errno.EISDIR, target)
            if folder and self.entries(new, new):
                raise _error(errno.ENOTEMPTY, target)
        self._os["rename"](self.bring_up(path, full), own)
        self.gone |= {full, new}

    def move_in(self, path: Any, target: Any) -> None:
        """Renames a file of this process's own (not in the layer) into the layer."""
        own = self.ready(target, _full(target))
        try:
            self._os["rename"](path, own)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with self._open(path, "rb") as source, self._open(own, "wb") as copy:
                shutil.copyfileobj(source, copy)
            self._os["unlink"](path)
        self.gone.add(_full(target))

    def move_out(self, path: Any, target: Any) -> None:
        """Renames a file of the layer to a path of this process's own (not in the layer)."""
        full = _full(path)
        if self.is_dir(full):
            raise _error(errno.EXDEV, path)
        with self._open(self._found(path, full), "rb") as source, self._open(target, "wb") as copy:
            shutil.copyfileobj(source, copy)
        self.remove(path)

    # -- looking ---------------------------------------------------------------------------------------------------

    def stat(self, path: Any, *, follow: bool) -> os.stat_result:
        if follow:
            return self._os["stat"](self._found(path, self.followed(path)))
        return self._os["lstat"](self._found(path, _full(path)))

    def look(self, name: str, path: Any, *args: Any, **kwargs: Any) -> Any:
        """listxattr, getxattr, statvfs …: of the file that the script sees there."""
        return self._os[name](self._found(path, self.followed(path)), *args, **kwargs)

    def access(self, path: Any, *args: Any, **kwargs: Any) -> bool:
        where = self.where(self.followed(path))
        return where is not None and self._os["access"](where, *args, **kwargs)


class OverlayEntry:
    """An entry of os.scandir for a file of the layer, with the path that the script knows."""

    def __init__(self, folder: Any, entry: os.DirEntry[str]) -> None:
        as_bytes = isinstance(folder, bytes)
        self.name: Any = os.fsencode(entry.name) if as_bytes else entry.name
        self.path = os.path.join(folder, self.name)
        self.is_dir, self.is_file, self.is_symlink = entry.is_dir, entry.is_file, entry.is_symlink
        self.stat, self.inode = entry.stat, entry.inode

    def __fspath__(self) -> Any:
        return self.path


class Listing:
    """The return value of os.scandir: an iterator that can be closed."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def process_start() -> float:
    """When this process was forked, in seconds since the epoch; rounded down."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - since_boot


def _full(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _error(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), os.fsdecode(path))
