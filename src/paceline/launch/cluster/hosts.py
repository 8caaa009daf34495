"""The hosts of a run, as users type them: `--hosts a:4,b:4`, or a file with one host on a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import UsageError

_HOST = re.compile(r"(?P<name>[^\s:,\[\]]+|\[[0-9A-Fa-f:.]+\])(?::(?P<workers>\d+))?")
_LINE = re.compile(r"(?P<name>\S+?)(?:\s+(?:slots|workers)\s*=\s*|:|\s+)(?P<workers>\d+)(?:\s.*)?|(?P<alone>\S+)")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A host, by the name at which it is reached (`user@name`, or an address), and the number of its workers."""

    name: str
    workers: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.workers}"


def parse(typed: str) -> list[HostSpec]:
    """UsageError if the text is not a list of hosts."""
    found = []
    for part in filter(None, (part.strip() for part in typed.split(","))):
        match = _HOST.fullmatch(part)
        if match is None:
            raise _wrong(f"--hosts {typed}: {part!r} is not a host")
        found.append(HostSpec(match["name"].strip("[]"), int(match["workers"] or 1)))
    return _checked(f"--hosts {typed}", found)


def read(path: Path) -> list[HostSpec]:
    """The hosts of a file: `name`, `name:4`, `name 4` or `name slots=4` on each line; # begins a comment."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UsageError(f"--hostfile {path} cannot be read: {why}.", advice="Type the path of a text file.") from None
    return parse_lines(text, f"--hostfile {path}")


def parse_lines(text: str, what: str) -> list[HostSpec]:
    """The hosts of a file's text. `what` names the file."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not (words := line.partition("#")[0].strip()):
            continue
        match = _LINE.fullmatch(words)
        if match is None:
            raise _wrong(f"{what}, line {number}: {words!r} is not a host")
        found.append(HostSpec(match["alone"] or match["name"], int(match["workers"] or 1)))
    return _checked(what, found)


def filled(hosts: Iterable[HostSpec], workers: int) -> Iterator[HostSpec]:
    """The hosts in their order, each with as many workers as it may have, until all workers have a place."""
    for host in hosts:
        if taken := min(host.workers, workers):
            workers -= taken
            yield HostSpec(host.name, taken)


def spread(hosts: Sequence[HostSpec], workers: int, over: int) -> list[HostSpec]:
    """The first `over` hosts, with equal shares of the workers, which differ by one worker at most."""
    each, more = divmod(workers, over)
    return [HostSpec(host.name, each + (number < more)) for number, host in enumerate(hosts[:over])]


def _checked(what: str, hosts: list[HostSpec]) -> list[HostSpec]:
    if not hosts:
        raise _wrong(f"{what} names no host")
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _wrong(f"{what} names {twice} twice")
    none = next((host.name for host in hosts if not host.workers), None)
    if none is not None:
        raise _wrong(f"{what} gives {none} no worker")
    return hosts


def _wrong(text: str) -> UsageError:
    return UsageError(f"{text}.", advice="Type each host once, with its number of workers: --hosts a:4,b:4")
