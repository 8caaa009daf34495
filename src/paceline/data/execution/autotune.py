"""Autotuning: settings are tried one after the other, and the one that gave most stays.

It is looked at while the consumer waits for results: else everything is fast enough. But for one thing: threads that
hold Python's lock keep the consumer from its own work, so that it seems to be the slower one; where they do, processes
are tried, and stay if the consumer gets more done. A window is a number of results that were given under one setting;
the first ones after a change do not count. What came out about as good as the best is measured again before it is
chosen: a window may be lucky.

`Tuner` sets where a stage computes and how much of it at a time, `PrefetchTuner` whether a prefetch runs in a thread
or in a process. Both measure in a `Window`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.data.error_policy import LostSamples
from paceline.data.execution.gil_probe import GilProbe
from paceline.data.metrics.meters import Meter
from paceline.data.planning.stages import How

WINDOW = 8  # results, at least; and three for each that is done at a time
TIME = 0.25  # seconds, at least
STARVED = 0.05  # of the time that the consumer waits, before anything is tried
BETTER = 1.05  # times as many results, for processes to be worth it
SAME = 1.02  # times as many results: no difference, the smaller setting will do
CLOSE = 1.1  # times as many results as another that is looked at again
FINAL, TWICE = 3, 2  # settings that are looked at again, and windows of each
COMPUTES = 0.1  # cores that threads are busy with, beside a consumer that does not wait, before the lock matters
USED = 0.7  # of the cores that threads ought to use, below which processes are tried
WAITS = 0.5  # cores, below which work waits for something else than the lock
PREFETCH_SETTLE, PREFETCH_TIME = 1.0, 1.0  # seconds: those that do not count after a change, and those of a window
PREFETCH_WINDOW = 16  # results, at least
PREFETCH_BUSY = 0.02  # cores that are busy with what is prefetched, before it matters to the script
PREFETCH_WAITS = 0.5  # of the time: a consumer that waits longer is not kept from its own work
PREFETCH_BETTER = 1.03  # times as many results, for a process to be worth it
MOST = 64  # at a time, of jobs that wait
BRIEF, FEW = 5e-3, 4  # seconds of a job, and threads to begin with where it is shorter: more would pass the lock around
ONE = {"threads": "thread", "processes": "process"}


class Window:
    """Results that are given under one setting, and what they cost. Begins when the setting has settled."""

    def __init__(self) -> None:
        self._begin: tuple[float, ...] | None = None

    def look(self, now: tuple[float, ...], *, settled: bool, seconds: float, results: int) -> tuple[float, ...] | None:
        """`now` is the time, the number of results, and other sums so far. What they grew by since the window began,
        and a new window begins; None as long as the window is too short."""
        if self._begin is None:
            self._begin = now if settled else None
            return None
        grown = tuple(new - old for new, old in zip(now, self._begin, strict=True))
        if grown[0] < seconds or grown[1] < results:
            return None
        self._begin = now
        return grown


@dataclass(frozen=True, slots=True)
class Seen:
    """What a setting gave."""

    rate: float  # results a second
    cores: float  # that were busy with them
    windows: int = 1  # that these are means of

    def and_again(self, rate: float, cores: float) -> Seen:
        count = self.windows + 1
        return Seen(self.rate + (rate - self.rate) / count, self.cores + (cores - self.cores) / count, count)


@dataclass(frozen=True, slots=True)
class PoolSetting:
    kind: Literal["here", "threads", "processes"]
    size: int

    def __str__(self) -> str:
        if self.kind == "here":
            return "here"
        return f"{self.size} {self.kind if self.size > 1 else ONE[self.kind]}"


HERE = PoolSetting("here", 1)
KINDS = ("here", "threads", "processes")  # from what costs least


class StageTuner:
    """Of one stage. `look` is called after each result, and says when another setting is to be tried."""

    def __init__(self, how: How, meter: Meter, cores: int, probe: GilProbe | None = None) -> None:
        self._how, self._meter, self._cores = how, meter, cores
        self._probe = probe or GilProbe()
        self._beside: dict[PoolSetting, list[float]] = {}  # results a second while the consumer did not wait
        self._lock_matters = how.kind == "auto"  # as far as is known
        kind: Literal["threads", "processes"] = "processes" if how.kind == "processes" else "threads"
        few = kind == "threads" and meter.each < BRIEF
        self.setting = PoolSetting(kind, how.parallel or (min(cores, FEW) if few else cores))
        self.fixed = how.parallel is not None and how.kind in ("threads", "processes")
        self._seen: dict[PoolSetting, Seen] = {}
        self._window = Window()
        # What a result costs where it is asked for, as seen before there was a pool.
        self._here = (meter.work + meter.wait) / meter.jobs if meter.jobs and how == How() else None
        self._alone = 0.0  # results a second that this promises
        self._pass = 0  # results since the last change

    def look(self, now: float) -> PoolSetting | None:
        """A setting to go over to; None: stay."""
        if self.fixed:
            return None
        meter = self._meter
        self._pass += 1
        grown = self._window.look(
            (now, meter.given, meter.idle, meter.cpu, meter.wait),
            settled=self._pass > 2 * self.setting.size,
            seconds=TIME,
            results=max(WINDOW, 3 * self.setting.size),
        )
        if grown is None:
            return None
        passed, given, idle, cpu, wait = grown
        if self.setting.kind == "here":
            pass  # who does the work itself waits for all of it
        elif idle < STARVED * passed:
            return self._look_beside(given / passed, cpu / passed)
        if self._beside and self._lock_matters:
            if self.setting.kind == "processes":  # a consumer that did not wait now does
                return self._end_beside(next(iter(self._beside)))
            self._beside.clear()
        if self._here is not None and self.setting.kind != "here":
            # Done here, nothing goes on beside the consumer's own work.
            self._alone = 1 / (self._here + max(0.0, passed - idle - wait) / given)
        before = self._seen.get(self.setting)
        fresh = Seen(given / passed, cpu / passed)
        self._seen[self.setting] = fresh if before is None else before.and_again(fresh.rate, fresh.cores)
        wanted = next((setting for setting in self._ideas() if setting not in self._seen), None) or self._doubtful()
        if wanted is None:
            self.fixed = True
            wanted = self._best()
            told = ", ".join(f"{setting} {seen.rate:.3g}/s" for setting, seen in self._seen.items())
            self._meter.notes.append(f"{wanted}: the best of {told}")
        return self._go(wanted)

    def _go(self, wanted: PoolSetting) -> PoolSetting | None:
        changed = wanted != self.setting
        self.setting, self._window, self._pass = wanted, Window(), 0
        return wanted if changed else None

    def _look_beside(self, rate: float, used: float) -> PoolSetting | None:
        """The consumer does not wait. Is it kept from its own work?"""
        if not self._lock_matters:
            return None
        if not self._beside:
            if self.setting.kind != "threads" or used < COMPUTES or (held := self._probe.holds()) is None:
                return None
            if not held:
                self._lock_matters = False
                return None
        rates = self._beside.setdefault(self.setting, [])
        rates.append(rate)
        if len(rates) < TWICE:
            return None
        if self.setting.kind == "threads":
            return self._go(PoolSetting("processes", self.setting.size))
        (threads, kept), (processes, gave) = ((one, max(rates)) for one, rates in self._beside.items())
        self._meter.notes.append(f"threads hold Python's lock: with them {kept:.3g}/s, with processes {gave:.3g}/s")
        return self._end_beside(processes if gave > BETTER * kept else threads)

    def _end_beside(self, wanted: PoolSetting) -> PoolSetting | None:
        self._lock_matters = False
        return self._go(wanted)

    def _doubtful(self) -> PoolSetting | None:
        """The next of the best ones, the very best among them, that was seen only once."""
        best = sorted(self._seen, key=lambda setting: -self._seen[setting].rate)[:FINAL]
        close = [setting for setting in best if self._seen[setting].rate * CLOSE >= self._seen[best[0]].rate]
        return next((setting for setting in close if self._seen[setting].windows < TWICE), None)

    def _ideas(self) -> Iterator[PoolSetting]:
        """What may be better than the best so far, the most promising first."""
        best = max((setting for setting in self._seen if setting != HERE), key=self._worth)
        used = self._seen[best].cores
        # Where cores are not used, Python's lock keeps threads from them, or the work waits. Threads that take turns
        # with the lock keep about one core busy; work that waits uses less, and wants more of whatever it has.
        waits = used < WAITS
        other = self._other_kind(best, used, waits)
        if other is not None and not waits:
            yield other
        if self._how.parallel is None:
            yield from self._pools(best, used)
        if other is not None and waits:
            yield other
        if self._how.parallel is not None:
            return
        if self._alone * CLOSE >= self._seen[best].rate:
            yield HERE  # a promise from before: others may have come to use the cores since

    def _other_kind(self, best: PoolSetting, used: float, waits: bool) -> PoolSetting | None:
        if self._how.kind != "auto":
            return None
        if best.kind == "threads" and used < USED * min(best.size, self._cores):
            return PoolSetting("processes", self._how.parallel or max(2, self._cores))
        return PoolSetting("threads", best.size) if best.kind == "processes" and waits else None

    def _pools(self, best: PoolSetting, used: float) -> Iterator[PoolSetting]:
        if used < USED * self._cores and 2 * best.size <= MOST:
            yield PoolSetting(best.kind, 2 * best.size)
        if best.size < 2 * self._cores or (best.size < MOST and used < USED * self._cores):
            yield PoolSetting(best.kind, best.size + 1)
        if best.size > 1:
            yield PoolSetting(best.kind, best.size - 1)

    def _worth(self, setting: PoolSetting) -> float:
        """Processes cost memory and a start: they are taken for what they give more."""
        return self._seen[setting].rate / (BETTER if setting.kind == "processes" else 1)

    def _best(self) -> PoolSetting:
        """The smallest of those that are about as good as the best."""
        top = max(seen.rate for seen in self._seen.values())
        good = [setting for setting, seen in self._seen.items() if seen.rate * self._margin(setting) >= top]
        return min(good, key=lambda setting: (KINDS.index(setting.kind), setting.size))

    def _margin(self, setting: PoolSetting) -> float:
        return BETTER if setting.kind != "processes" and self._top().kind == "processes" else SAME

    def _top(self) -> PoolSetting:
        return max(self._seen, key=lambda setting: self._seen[setting].rate)


class HasStages(Protocol):
    """The stages before a prefetch, as they would run in a process."""

    meters: list[Meter]
    losses: LostSamples


class PrefetchTuner:
    """Thread or process, of one prefetch over all its epochs. A thread takes Python's lock at each turn from a script
    that wants it; no clock shows how much that costs, so both are tried, and the process stays if the script gets on
    faster."""

    def __init__(self, meter: Meter, stages: HasStages | None) -> None:
        self.in_process = False
        self._meter, self._stages = meter, stages  # None: nothing is left to choose
        self._kept = 0.0  # results a second with the thread
        self._again()

    def _again(self) -> None:
        self._passed, self._results = 0.0, 0
        self._last: float | None = None
        self._window = Window()

    def pause(self) -> None:
        """A loop ends: what is between two of them does not count."""
        self._last = None

    def never(self) -> None:
        """It cannot be done in a process."""
        self.in_process, self._stages = False, None

    def look(self, now: float) -> bool:
        """Called after each result. Whether to change over."""
        if self._stages is None:
            return False
        if self._last is not None:
            self._passed += now - self._last
            self._results += 1
        self._last = now
        if self._passed < PREFETCH_SETTLE:
            return False
        busy = self._meter.cpu + sum(meter.cpu for meter in self._stages.meters)
        grown = self._window.look(
            (self._passed, self._results, self._meter.wait, busy),
            settled=True,
            seconds=PREFETCH_TIME,
            results=PREFETCH_WINDOW,
        )
        if grown is None:
            return False
        passed, results, waited, busy = grown
        rate = results / passed
        if self.in_process:
            return self._decide(rate)
        self._again()
        # What lies ready is made again after a change, and what was lost of it would be counted twice.
        if waited > PREFETCH_WAITS * passed or busy < PREFETCH_BUSY * passed or self._stages.losses.count:
            return False
        self._kept, self.in_process = rate, True
        return True

    def _decide(self, rate: float) -> bool:
        self._stages = None
        self.in_process = rate > PREFETCH_BETTER * self._kept
        self._meter.notes.append(f"with a thread {self._kept:.3g}/s, with a process {rate:.3g}/s")
        return not self.in_process
