"""Autotuning: settings are tried one after the other, and the one that gave most stays.

It is looked at only while the consumer waits for results: else everything is fast enough, and there is nothing to win.
A window is a number of results that were given under one setting; the first ones after a change do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paceline.data.meters import Meter
from paceline.data.stages import How

WINDOW = 8  # results, at least; and three for each that is done at a time
TIME = 0.25  # seconds, at least
STARVED = 0.05  # of the time that the consumer waits, before anything is tried
BETTER = 1.05  # times as many results, for more of them to be worth it
USED = 0.7  # of the cores that threads ought to use, below which processes are tried
MOST = 64  # at a time, of jobs that wait


@dataclass(frozen=True, slots=True)
class Seen:
    """What a setting gave."""

    rate: float  # results a second
    cores: float  # that were busy with them


@dataclass(frozen=True, slots=True)
class Setting:
    kind: Literal["here", "threads", "processes"]
    size: int

    def __str__(self) -> str:
        if self.kind == "here":
            return "here"
        return f"{self.size} {self.kind if self.size > 1 else self.kind.removesuffix('es').removesuffix('s')}"


class Tuner:
    """Of one stage. `look` is called after each result, and says when another setting is to be tried."""

    def __init__(self, how: How, meter: Meter, cores: int) -> None:
        self._how, self._meter, self._cores = how, meter, cores
        kind: Literal["threads", "processes"] = "processes" if how.kind == "processes" else "threads"
        self.setting = Setting(kind, how.parallel or cores)
        self.fixed = how.parallel is not None and how.kind in ("threads", "processes")
        self._seen: dict[Setting, Seen] = {}
        self._begin: tuple[float, int, float, float, float] | None = None
        # What a result costs where it is asked for, as seen before there was a pool.
        self._here = (meter.work + meter.wait) / meter.jobs if meter.jobs and how == How() else None
        self._pass = 0  # results since the last change

    def look(self, now: float) -> Setting | None:
        """A setting to go over to; None: stay."""
        if self.fixed:
            return None
        meter = self._meter
        here = now, meter.given, meter.idle, meter.cpu, meter.wait
        if self._begin is None:
            self._pass += 1
            if self._pass > 2 * self.setting.size:
                self._begin = here
            return None
        passed, given, idle, cpu, wait = (new - old for new, old in zip(here, self._begin, strict=True))
        if given < max(WINDOW, 3 * self.setting.size) or passed < TIME:
            return None
        self._begin = here
        if idle < STARVED * passed:
            return None
        self._seen[self.setting] = Seen(given / passed, cpu / passed)
        wanted = next((setting for setting in self._ideas() if setting not in self._seen), None)
        if wanted is None:
            self.fixed = True
            wanted = self._best()
            if self._here is not None:
                # Done here, nothing goes on beside the consumer's own work.
                alone = 1 / (self._here + max(0.0, passed - idle - wait) / given)
                if alone >= self._seen[wanted].rate:
                    wanted = Setting("here", 1)
                    self._seen[wanted] = Seen(alone, 1.0)
            told = ", ".join(f"{setting} {seen.rate:.3g}/s" for setting, seen in self._seen.items())
            self._meter.notes.append(f"{wanted}: the best of {told}")
        changed = wanted != self.setting
        self.setting, self._begin, self._pass = wanted, None, 0
        return wanted if changed else None

    def _ideas(self) -> Iterator[Setting]:
        """What may be better than the best so far, the most promising first."""
        best = max(self._seen, key=self._worth)
        used = self._seen[best].cores
        if self._how.kind == "auto" and best.kind == "threads" and used < USED * min(best.size, self._cores):
            # The cores are not used. Does Python's lock keep threads from them, or does the work wait?
            yield Setting("processes", self._how.parallel or max(2, self._cores))
        if self._how.parallel is not None:
            return
        if used < USED * self._cores and 2 * best.size <= MOST:
            yield Setting(best.kind, 2 * best.size)
        if best.size < 2 * self._cores or (best.size < MOST and used < USED * self._cores):
            yield Setting(best.kind, best.size + 1)
        if best.size > 1:
            yield Setting(best.kind, best.size - 1)

    def _worth(self, setting: Setting) -> float:
        """Processes cost memory and a start: they are taken for what they give more."""
        return self._seen[setting].rate / (BETTER if setting.kind == "processes" else 1)

    def _best(self) -> Setting:
        """The smallest of those that are about as good as the best."""
        top = max(seen.rate for seen in self._seen.values())
        good = [setting for setting, seen in self._seen.items() if seen.rate * BETTER >= top]
        return min(good, key=lambda setting: (setting.size, setting.kind == "processes"))
