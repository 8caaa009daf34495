"""Opens the files of a record, and no file outside it.

A record may come from an untrusted source. A symbolic link in a record could lead to any file of the reader's account,
and a FIFO blocks the process that opens it. So every reader goes through `Folder` and `File`: below the folder that the
caller named, no part of a path may be a link, and only regular files are opened. Each part is opened relative to the
descriptor of its parent, so that replacing a part meanwhile has no effect. Hard links cannot be detected.
"""

from __future__ import annotations

import errno
import io
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import (  # bound here, before a script's file functions are redirected
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
from typing import BinaryIO, TypeVar, cast

import msgspec

from paceline.errors import NotRegularError, RecordError

T = TypeVar("T")
_FOLDER = O_RDONLY | O_DIRECTORY | O_CLOEXEC
_FILE = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC  # O_NONBLOCK: opening a FIFO does not block
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
    """A folder. `base` is the folder that the caller named, and may be a link; none of `parts` below it may be one."""

    base: Path
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, folder: Folder | Path | str) -> Folder:
        return folder if isinstance(folder, Folder) else cls(Path(folder))

    @property
    def path(self) -> Path:
        """The path for messages. Do not open it."""
        return self.base.joinpath(*self.parts)

    def __str__(self) -> str:
        return str(self.path)

    def file(self, name: str) -> File:
        """`name` is one part of a path."""
        return File(self, _part(name))

    def folder(self, *parts: str) -> Folder:
        return Folder(self.base, (*self.parts, *map(_part, parts)))

    def names(self, pattern: str = "*") -> list[str]:
        """The names of the folder's entries, sorted; none if the folder does not exist. OSError if the folder cannot be
        listed, NotRegularError if it is a link."""
        try:
            here = self.open()
        except FileNotFoundError:
            return []
        try:
            return sorted(name for name in listdir(here) if fnmatchcase(name, pattern))
        finally:
            close(here)

    def open(self) -> int:
        """A descriptor of the folder. The caller closes it."""
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
    """A file in a `Folder`."""

    folder: Folder
    name: str

    @classmethod
    def of(cls, path: Path | File) -> File:
        """The file at a path. The folder of a path may be a link, the file may not."""
        return path if isinstance(path, File) else Folder(path.parent).file(path.name)

    @property
    def path(self) -> Path:
        """The path for messages. Do not open it."""
        return self.folder.path / self.name

    def __str__(self) -> str:
        return str(self.path)

    def stat(self) -> stat_result | None:
        """The status of the entry with this name, without following a link; None if there is no such entry."""
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
        """Whether an entry has this name. `open` refuses an entry that is not a regular file."""
        return self.stat() is not None

    def open(self) -> BinaryIO:
        """Opens the file. OSError if the file is missing or unreadable, NotRegularError if it is not a regular file."""
        here = self.folder.open()
        try:
            # Checked before the open as well as after it: opening a device may have side effects.
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
        """The whole content. Raises like `open`, and RecordError if the file has more than `most` bytes."""
        with self.open() as file:
            size = fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise RecordError(
                    f"{self} has {size >> 20:,} MiB; Paceline writes such files with at most {most >> 20} MiB.",
                    advice="The file is not read. If it is intact, shorten it or open it with another tool.",
                )
            # The file may grow meanwhile: `most` bounds the read.
            return file.read() if most is None else file.read(most)

    def lines(self, kind: type[T], most: int | None = None) -> list[T]:
        """The lines of JSON, up to one that is torn. Raises like `read`."""
        decoder, found = msgspec.json.Decoder(kind), []
        for line in self.read(most).splitlines():
            try:
                found.append(decoder.decode(line))
            except (msgspec.DecodeError, RecursionError):
                break
        return found

    def read_end(self, most: int) -> tuple[bytes, bool]:
        """The last `most` bytes, and whether the file has more. Raises like `open`."""
        with self.open() as file:
            start = max(0, fstat(file.fileno()).st_size - most)
            file.seek(start, io.SEEK_SET)
            return file.read(most), start > 0

    def _prove(self, told: stat_result) -> None:
        if not stat.S_ISREG(told.st_mode):
            raise _refusal(self.path, told)


def _part(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise RecordError(f"{name[:200]!r} is not a valid name of a file in a record.")
    return name


def _refusal(path: Path, told: stat_result, wanted: str = "regular files") -> NotRegularError:
    kind = _KINDS.get(stat.S_IFMT(told.st_mode), "not a regular file")
    if kind == "a symbolic link":
        advice = "Links are not followed. Replace the link by its target, or name the target on the command line."
    else:
        advice = "Remove it from the record. The other pages of the record are not affected."
    return NotRegularError(f"{path} is {kind}. Only {wanted} are opened.", advice=advice)
