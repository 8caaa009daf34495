"""Size limits: readers check the size of a record, line, image or array before they allocate memory for it.

A file states the sizes of its records, arrays and images, and a small compressed file can hold a very large record.
Therefore every reader takes `max_bytes`. The default depends on what is read:

    a record, a sample of a tar shard, a decoded record   RECORD
    a line of text                                        LINE
    a decoded image                                       IMAGE
    an array that is read as a whole (idx, CIFAR)         a share of the available memory
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.errors import DataError

RECORD = 1 << 30
LINE = 256 << 20
IMAGE = 256 << 20  # 89 million pixels of three bytes: Pillow warns about larger images
SHARE = 0.5  # of the available memory
EXPANDS = 1032  # bytes that deflate expands one byte to, at most
STEP = 8 << 20  # bytes of a large record that are read at once


def array_limit(max_bytes: int | None) -> int:
    """The limit in bytes for arrays that are read as a whole."""
    return int(SHARE * available_memory()) if max_bytes is None else max_bytes


def available_memory(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> int:
    """Bytes that this process can still allocate, limited by the machine and its control groups (containers, Slurm)."""
    return min([_of_machine(proc), *_of_groups(sys, proc)])


def _of_machine(proc: Path) -> int:
    from paceline.topology.host import read

    for line in read(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 16 << 30  # the kernel does not report it: assume a small machine


def _of_groups(sys: Path, proc: Path) -> Iterator[int]:
    from paceline.topology.host import control_groups, read

    for folder in control_groups("memory", sys=sys, proc=proc):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, taken = read(folder / most).strip(), read(folder / used).strip()
            if limit.isdecimal() and taken.isdecimal():
                # Cached file contents do not count, because the kernel drops them before it refuses memory.
                yield max(0, int(limit) - max(0, int(taken) - _cached(read(folder / "memory.stat"))))


def _cached(stat: str) -> int:
    return sum(int(line.split()[1]) for line in stat.splitlines() if line.startswith(("inactive_file ", "cache ")))


def too_large(what: str, size: int, limit: int, option: str, *, otherwise: str = "", so_far: bool = False) -> DataError:
    """`what` names the record (or line, image, array) and its file; `option` is the call or option to type, with {} for
    the size."""
    more = f" {otherwise}" if otherwise else ""
    number = typed(size, on_command_line=option.startswith("--"))
    rounded = f" ({told(size)})" if size >= 1024 else ""
    return DataError(
        f"{what} has {size} bytes{rounded}{' or more' if so_far else ''}, over the limit of {told(limit)}.",
        advice=f"If you trust the file, raise the limit: {option.format(number)}.{more}",
    )


def told(size: int) -> str:
    """A size as text: 1.5 GiB."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{round(size / (1 << shift), 1):g} {unit}" if size < 1 << 50 else f"{size:.2g} bytes"
    return f"{size} bytes"


def typed(size: int, *, on_command_line: bool = False) -> str:
    """The next power of two, as typed in Python (4 << 30) or as an option of a verb (4GiB)."""
    shift = 30 if size > 512 << 20 else 20
    units = 1 << (-(-size // (1 << shift)) - 1).bit_length()
    return f"{units}{'GiB' if shift == 30 else 'MiB'}" if on_command_line else f"{units} << {shift}"
