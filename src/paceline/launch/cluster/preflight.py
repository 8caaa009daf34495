"""Looks at all hosts before anything is started there, and reports every problem at once.

Each agent tells what it finds; then the hosts try to connect to each other, on each network that all of them share.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from paceline.errors import LaunchError, UsageError
from paceline.launch.cluster import messages as wire
from paceline.launch.cluster.facts import TRIAL
from paceline.launch.cluster.remote import RemoteHost
from paceline.launch.host import HostLostError, HostsGoneError

CLOCKS = 5.0  # seconds by which clocks may differ
MANY = 32  # hosts: with more, not every one tries every other
LOOPBACK = wire.Interface("lo", "127.0.0.1", "127.0.0.0/8", 0)
_PAUSE = 0.02

T = TypeVar("T", bound=wire.FromAgent)


@dataclass
class Problems:
    """What is wrong, by host."""

    hosts: Sequence[RemoteHost]
    found: dict[int, list[str]] = field(default_factory=dict)

    def add(self, host: RemoteHost, problem: str) -> None:
        self.found.setdefault(host.number, []).append(problem)

    def raise_any(self, advice: str) -> None:
        if not self.found:
            return
        lines = [f"  {self.hosts[number].name}: {text}" for number in sorted(self.found) for text in self.found[number]]
        count = len(self.found)
        error = HostsGoneError(
            f"{count} of {len(self.hosts)} hosts cannot be used:\n" + "\n".join(lines),
            advice=advice,
        )
        error.names = tuple(self.hosts[number].name for number in self.found)
        raise error


@dataclass(frozen=True)
class Way:
    """A way between all hosts: one interface on each."""

    interfaces: tuple[wire.Interface, ...]

    @property
    def speed(self) -> int:
        return min(each.speed for each in self.interfaces)


def check(
    hosts: Sequence[RemoteHost],
    *,
    versions: dict[str, str],
    digest: str,
    folder: str,
    script: str,
    interface: str | None,
    patience: float,
    interrupted: Callable[[], bool],
) -> tuple[list[str], Way | None, list[wire.Facts]]:
    """Notices about the hosts, the way between them, and what they told; no way if there is one host, or if a signal
    came. Raises LaunchError, with all problems, if some host cannot be used."""
    problems = Problems(hosts)
    told = _from_all(hosts, wire.Hello, patience, problems, interrupted)
    if interrupted():
        return [], None, []
    notices: list[str] = []
    for host in hosts:
        if (hello := told.get(host.number)) is not None:
            notices += _look_at(host, hello.facts, problems, versions, digest, folder, script)
    problems.raise_any("Look at each host's line; `ssh HOST` shows whether a host can be reached.")
    found = [told[host.number].facts for host in hosts]
    way = _try(hosts, _ways(found, interface, hosts), problems, interrupted) if len(hosts) > 1 else None
    return notices, way, found


def _look_at(
    host: RemoteHost,
    facts: wire.Facts,
    problems: Problems,
    versions: dict[str, str],
    digest: str,
    folder: str,
    script: str,
) -> Iterator[str]:
    for name, version in versions.items():
        there = facts.versions.get(name, "none")
        if _main_part(name, there) != _main_part(name, version):
            problems.add(host, f"{name} {there} is installed there, and {version} here")
    if not facts.has_folder:
        problems.add(host, f"there is no folder {folder}")
    elif facts.digest != digest:
        what = "differs from the one here" if facts.digest else "does not exist there"
        problems.add(host, f"the script {script} {what}")
    if facts.cores * 4 < len(host.ranks):
        problems.add(host, f"it has {facts.cores} cores, too few for {len(host.ranks)} workers")
    if (apart := abs(facts.at - time.time())) > CLOCKS:
        yield f"The clock of {host.name} differs by {apart:.0f} s from the clock here, and so do times in the record."


def _main_part(name: str, version: str) -> str:
    """Of Python the minor version, of other packages the whole."""
    return ".".join(version.split(".")[:2]) if name == "python" else version.partition("+")[0]


def _ways(facts: Sequence[wire.Facts], interface: str | None, hosts: Sequence[RemoteHost]) -> list[Way]:
    """The networks that all hosts share, fastest first; last the first interface of each, which routers may join."""
    if interface is not None:
        chosen = [next((each for each in fact.interfaces if each.name == interface), None) for fact in facts]
        for host, each, fact in zip(hosts, chosen, facts, strict=True):
            if each is None:
                raise UsageError(
                    f"--interface {interface}: {host.name} has no such interface that is up.",
                    advice=f"It has: {', '.join(one.name for one in fact.interfaces) or 'none'}",
                )
        return [Way(tuple(each for each in chosen if each is not None))]
    found = []
    for network in dict.fromkeys(each.network for each in facts[0].interfaces):
        members = [[each for each in fact.interfaces if each.network == network] for fact in facts]
        if all(members):
            found.append(Way(tuple(each[0] for each in members)))
    found.sort(key=lambda way: -way.speed)
    if all(fact.interfaces for fact in facts):
        routed = Way(tuple(fact.interfaces[0] for fact in facts))
        found += [routed] if routed not in found else []
    elif not found and len({fact.host for fact in facts}) == 1:  # several agents on one machine without a network
        found.append(Way((LOOPBACK,) * len(facts)))
    return found


def _try(
    hosts: Sequence[RemoteHost], ways: Sequence[Way], problems: Problems, interrupted: Callable[[], bool]
) -> Way | None:
    """The first way on which every host can connect to every other."""
    if not ways:
        raise LaunchError(
            "The hosts have no network interface with an IPv4 address in common.",
            advice="Look at `ip address` on each host.",
        )
    for host in hosts:
        host.say(wire.Listen(tuple(way.interfaces[host.number].address for way in ways)))
    ports = _from_all(hosts, wire.Listening, TRIAL, problems, interrupted)
    problems.raise_any("Start the run again.")
    if interrupted():
        return None
    trials = {
        host.number: [
            (way, other, (way.interfaces[host.number].address, way.interfaces[other.number].address, port))
            for other in (hosts[number] for number in _partners(host.number, len(hosts)))
            for way, port in zip(ways, ports[other.number].ports, strict=True)
        ]
        for host in hosts
    }
    for host in hosts:
        host.say(wire.Connect(tuple(place for _, _, place in trials[host.number])))
    reached = _from_all(hosts, wire.Reached, TRIAL + 6.0, problems, interrupted)
    problems.raise_any("Start the run again.")
    if interrupted():
        return None
    failed = {
        (way, host.number, other.number): why
        for host in hosts
        for (way, other, _), why in zip(trials[host.number], reached[host.number].failures, strict=True)
        if why
    }
    broken = {way for way, _, _ in failed}
    for way in ways:
        if way not in broken:
            return way
    best = ways[0]
    for (way, number, to), why in failed.items():
        if way == best:
            host, other, there = hosts[number], hosts[to], best.interfaces[to]
            problems.add(host, f"cannot connect to {other.name} at {there.address} ({there.name}): {why}")
    problems.raise_any(
        "Workers connect at ports that the kernel chooses: open them between the hosts in the firewall, or choose "
        "another network: --interface NAME"
    )
    return best


def _partners(number: int, count: int) -> list[int]:
    """The hosts that a host tries to connect to: all others; of many, those at distances of 1, 2, 4, …: a host that is
    cut off is found, a single pair may not be."""
    if count <= MANY:
        return [other for other in range(count) if other != number]
    return [(number + (1 << bit)) % count for bit in range((count - 1).bit_length())]


def _from_all(
    hosts: Iterable[RemoteHost], kind: type[T], seconds: float, problems: Problems, interrupted: Callable[[], bool]
) -> dict[int, T]:
    """One message of this kind from each host; a host without one is a problem."""
    by, left, found = time.monotonic() + seconds, list(hosts), dict[int, T]()
    while left and time.monotonic() < by and not interrupted():
        for host in list(left):
            try:
                for message in host.expect():
                    if isinstance(message, kind):
                        found[host.number] = message
                    elif isinstance(message, wire.Ready):
                        host.is_ready = True
                    elif isinstance(message, wire.Trouble):
                        raise HostLostError(host.name, host.ranks, message.message)
            except HostLostError as error:
                problems.add(host, error.why)
                left.remove(host)
                continue
            if host.number in found:
                left.remove(host)
        time.sleep(_PAUSE)
    if not interrupted():
        for host in left:
            problems.add(host, f"no answer within {seconds:.0f} s")
    return found
