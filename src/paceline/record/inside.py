"""Opens the files of a record, and nothing outside it.

A record may come from anywhere. A symbolic link in it could lead to any file of the reader's account, and a FIFO
blocks whoever opens it. So every reader goes through `Folder` and `File`: below the folder that was named, no part of a
path may be a link, and only regular files are opened. Each part is opened relative to the descriptor of the part before
it, so replacing a part in between changes nothing. A hard link cannot be told from the file itself.
"""

from __future__ import annotations

import errno
import io
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import (  # as they are before a script's files are redirected
    O_CLOEXEC,
    O_DIRECTORY,
    O_NOCTTY,
    O_NOFOLLOW,
    O_NONBLOCK,
    O_RDONLY,
    close,
    fdopen,
    fstat,
    listdir,
    stat_result,
)
from os import open as open_file
from os import stat as stat_at
from pathlib import Path
from typing import BinaryIO, cast

from paceline.errors import NotRegularError, RecordError

_FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC
_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC  # O_NONBLOCK: a FIFO does not keep us
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder. `base` is as somebody named it, and may be a link; none of `parts`, below it, may be one."""

    base: Path
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Folder | Path | str) -> Folder:
        return folder if isinstance(folder, Folder) else cls(Path(folder))

    @property
    def path(self) -> Path:
        """To be shown, not to be opened."""
        return self.base.joinpath(*self.parts)

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> File:
        """`name` is one part of a path."""
        return File(self, _part(name))

    def folder(self, *parts: str) -> Folder:
        return Folder(self.base, (*self.parts, *map(_part, parts)))

    def names(self, pattern: str = "*") -> list[str]:
        """What lies in it, sorted; nothing where there is no such folder. OSError where it cannot be listed,
        NotRegularError where it is a link."""
        try:
            here = self.open()
        except FileNotFoundError:
            return []
        try:
            return sorted(name for name in listdir(here) if fnmatchcase(name, pattern))
        finally:
            close(here)

    def open(self) -> int:
        """A descriptor, for the caller to close."""
        here = open_file(self.base, _FOLDER)
        for number, part in enumerate(self.parts, 1):
            try:
                below = open_file(part, _FOLDER | O_NOFOLLOW, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                path = self.base.joinpath(*self.parts[:number])
                raise _refusal(path, stat_at(part, dir_fd=here, follow_symlinks=False), "folders") from error
            finally:
                close(here)
            here = below
        return here


@dataclass(frozen=True, slots=True)
class File:
    """A file in such a folder."""

    folder: Folder
    name: str

    @classmethod
    def of(cls, path: Path | File) -> File:
        """Of a path: the folder that it is in may be a link, the file may not."""
        return path if isinstance(path, File) else Folder(path.parent).file(path.name)

    @property
    def path(self) -> Path:
        """To be shown, not to be opened."""
        return self.folder.path / self.name

    def __str__(self) -> str:
        return str(self.path)

    def stat(self) -> stat_result | None:
        """Of whatever has this name, also of a link; None where nothing has."""
        try:
            here = self.folder.open()
        except OSError:
            return None
        try:
            return stat_at(self.name, dir_fd=here, follow_symlinks=False)
        except OSError:
            return None
        finally:
            close(here)

    def exists(self) -> bool:
        """Whether anything has this name. What is no regular file is told when it is opened."""
        return self.stat() is not None

    def open(self) -> BinaryIO:
        """OSError where it is not there or may not be read, NotRegularError where it is no regular file."""
        here = self.folder.open()
        try:
            # Asked before as well as after: opening a device may do something.
            self._prove(stat_at(self.name, dir_fd=here, follow_symlinks=False))
            try:
                descriptor = open_file(self.name, _FILE, dir_fd=here)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise _refusal(self.path, stat_at(self.name, dir_fd=here, follow_symlinks=False)) from error
        finally:
            close(here)
        try:
            self._prove(fstat(descriptor))
        except BaseException:
            close(descriptor)
            raise
        return cast(BinaryIO, fdopen(descriptor, "rb"))

    def read(self, most: int | None = None) -> bytes:
        """All of it. As `open`, and RecordError where it has more than `most` bytes."""
        with self.open() as file:
            size = fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise RecordError(
                    f"{self} has {size >> 20:,} MiB; nothing of ours has more than {most >> 20}.",
                    advice="It is not read. If it is whole, make it smaller or look at it with another tool.",
                )
            # It may grow meanwhile: no more than was there, or than may be.
            return file.read() if most is None else file.read(most)

    def read_end(self, most: int) -> tuple[bytes, bool]:
        """Its last bytes, and whether there were more. As `open`."""
        with self.open() as file:
            start = max(0, fstat(file.fileno()).st_size - most)
            file.seek(start, io.SEEK_SET)
            return file.read(most), start > 0

    def _prove(self, told: stat_result) -> None:
        if not stat.S_ISREG(told.st_mode):
            raise _refusal(self.path, told)


def _part(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise RecordError(f"{name[:200]!r} is no name of a file in a record.")
    return name


def _refusal(path: Path, told: stat_result, wanted: str = "regular files") -> NotRegularError:
    kind = _KINDS.get(stat.S_IFMT(told.st_mode), "no regular file")
    if kind == "a symbolic link":
        advice = "Links are not followed. Put the thing itself there, or name its own folder on the command line."
    else:
        advice = "Take it out of the record; the other pages stay as they are."
    return NotRegularError(f"{path} is {kind}. Only {wanted} are opened.", advice=advice)
