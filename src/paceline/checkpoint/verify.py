"""Compares the files of a checkpoint with their checksums. Works without torch."""

from __future__ import annotations

import zlib
from pathlib import Path

from paceline.checkpoint.manifest import StoredFile, damaged
from paceline.errors import CheckpointError

CHUNK = 64 << 20  # bytes


def digest(path: Path) -> str:
    """The file's checksum: the CRC-32 of each chunk. It finds damage, not malice, at 2.6 GB/s of a core that computes
    SHA-256 at 0.35 GB/s. Lets other threads run meanwhile."""
    codes: list[str] = []
    buffer = memoryview(bytearray(min(CHUNK, path.stat().st_size + 1)))
    with open(path, "rb", buffering=0) as file:
        while True:
            filled = 0
            while filled < len(buffer) and (got := file.readinto(buffer[filled:])):
                filled += got
            if not filled:
                return "".join(codes)
            codes.append(f"{zlib.crc32(buffer[:filled]):08x}")


def fault_of(folder: Path, file: StoredFile) -> str:
    """What is wrong with a file, as a clause that follows its name; empty if the file is intact."""
    path = folder / file.path
    try:
        size = path.stat().st_size
        if size != file.bytes:
            return f"has {size} bytes instead of {file.bytes}"
        return "" if digest(path) == file.crc32 else "does not have the content that was written: its checksum differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def refuse_faults(folder: Path, faults: dict[str, str]) -> None:
    """Raises CheckpointError for the first of these faulty files, by path."""
    for path, fault in sorted(faults.items()):
        if fault:
            others = len([one for one in faults.values() if one]) - 1
            raise CheckpointError(
                damaged(folder / path, fault).message + (f" {others} more files are damaged." if others else ""),
                advice=damaged(folder / path, fault).advice,
            )
