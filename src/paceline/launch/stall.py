"""The stall inspector: says who waits, who is missing, and where everybody stands, when workers wait too
long.

Works on heartbeats alone. A worker that is missed is one that is in no collective, has ended, or is no longer
heard of; where all wait, they wait in different collectives: they parted ways.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.launch import wire

_SILENT = 5.0  # seconds without a heartbeat after which a worker is called silent


@dataclass(slots=True)
class Standing:
    """What the launcher knows of one worker."""

    rank: int
    beat: wire.Beat | None = None
    heard: float = 0.0  # when the beat came, on the launcher's clock
    ended: bool = False

    def waited(self, now: float) -> float:
        """How long it has been in the collective it is in; 0 where it is in none."""
        if self.ended or self.beat is None or not self.beat.waiting:
            return 0.0
        return self.beat.waited + (now - self.heard)


@dataclass(frozen=True, slots=True)
class Stalled:
    """A stall, at one moment."""

    longest: float
    waiting: list[Standing]
    missing: list[Standing]


@dataclass(slots=True)
class Inspector:
    """Finds a stall once: again only after the workers went on and then stalled anew."""

    warning: float  # seconds; 0: never
    abort: float | None
    _reported: set[tuple[int, int]] = field(default_factory=set, init=False)  # who waited in which collective

    def look(self, standings: list[Standing], now: float) -> Stalled | None:
        """A stall that has not been reported yet."""
        stalled = _stalled(standings, now)
        limits = [limit for limit in (self.warning, self.abort) if limit]
        if stalled is None or not limits or stalled.longest < min(limits):
            self._reported.clear()
            return None
        # By their collectives: between two stalls the workers may go on for less than the time between two looks.
        waits = {(standing.rank, standing.beat.collectives) for standing in stalled.waiting if standing.beat}
        known, self._reported = bool(waits & self._reported), waits
        return None if known else stalled

    def gives_up(self, standings: list[Standing], now: float) -> Stalled | None:
        """A stall that has lasted long enough to end the run."""
        stalled = _stalled(standings, now)
        if self.abort and stalled is not None and stalled.longest >= self.abort:
            return stalled
        return None


def report(stalled: Stalled, standings: list[Standing], stacks: dict[int, str], host: str, now: float) -> str:
    """What a person reads."""
    lines = [f"Stalled: {_ranks(stalled.waiting)} waited {stalled.longest:.1f} s for other workers."]
    lines += [f"  {_stand(standing, host, now)}" for standing in stalled.waiting]
    if stalled.missing:
        lines.append(f"Missing: {_ranks(stalled.missing)}.")
        lines += [f"  {_stand(standing, host, now)}" for standing in stalled.missing]
    else:
        lines.append("Nobody is missing: the workers parted ways and wait in different collectives.")
    lines.append("Where each worker stands (main thread, innermost line last):")
    for standing in standings:
        if not standing.ended:
            stack = stacks.get(standing.rank, "  did not answer: its Python is blocked, or it has not started yet")
            lines += [f"worker {standing.rank}:", stack]
    return "\n".join(lines)


def blame(stalled: Stalled) -> int:
    """The rank to name where one has to be: the first that is missing, or else the one that is furthest
    behind."""
    if stalled.missing:
        return stalled.missing[0].rank
    return min(stalled.waiting, key=lambda s: (s.beat.collectives if s.beat else 0, s.rank)).rank


def _stalled(standings: list[Standing], now: float) -> Stalled | None:
    waiting = [standing for standing in standings if standing.waited(now) > 0]
    if not waiting:
        return None
    missing = [standing for standing in standings if standing not in waiting]
    return Stalled(max(standing.waited(now) for standing in waiting), waiting, missing)


def _ranks(standings: list[Standing]) -> str:
    ranks = ", ".join(str(standing.rank) for standing in standings)
    return f"worker{'s' if len(standings) > 1 else ''} {ranks}"


def _stand(standing: Standing, host: str, now: float) -> str:
    name, beat = f"worker {standing.rank} on {host}", standing.beat
    if standing.ended:
        return f"{name}: its script has ended" + (f", after step {beat.step}" if beat else "")
    if beat is None:
        return f"{name}: has not been heard of yet"
    place = f"step {beat.step}, after seam {beat.seam}, {beat.collectives} collectives entered"
    if beat.waiting:
        text = f"{name}: waits in {beat.waiting} for {standing.waited(now):.1f} s; {place}"
    else:
        text = f"{name}: in no collective; {place}"
    silent = now - standing.heard
    return text + (f"; no heartbeat for {silent:.0f} s" if silent > _SILENT else "")
