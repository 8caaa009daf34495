"""Autotuning: tries settings one after the other, and keeps the one with the highest throughput.

Settings are tried only while the consumer waits for results, with one exception: threads that hold the GIL slow down
the consumer, which then seems to be the slower side. If threads hold the GIL, processes are tried, and kept if the
consumer gets faster. A window is a number of results under one setting; the first results after a change do not count.
Settings with nearly the best throughput are measured again before the choice, because a single window may be lucky.

`StageTuner` chooses where a stage runs and how many jobs run at a time, `PrefetchTuner` whether a prefetch runs in a
thread or in a process. Both measure in a `Window`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from paceline.data.error_policy import LostSamples
from paceline.data.meters import Meter
from paceline.data.planning.stages import How

WINDOW = 8  # results of a window at least, and three for each parallel job
TIME = 0.25  # seconds of a window, at least
STARVED = 0.05  # share of its time that the consumer must wait before settings are tried
BETTER = 1.05  # throughput ratio from which on processes are worth their cost
SAME = 1.02  # throughput ratio below which the smaller setting is chosen
CLOSE = 1.1  # throughput ratio within which settings are measured again
FINAL, TWICE = 3, 2  # settings that are measured again, and windows of each
COMPUTES = 0.1  # busy cores of threads, below which the GIL does not matter to a consumer that does not wait
USED = 0.7  # share of the cores that threads should use, below which processes are tried
WAITS = 0.5  # busy cores below which work waits for something else than the GIL
PREFETCH_SETTLE, PREFETCH_TIME = 1.0, 1.0  # seconds after a change that do not count, and seconds of a window
PREFETCH_WINDOW = 16  # results of a window, at least
PREFETCH_BUSY = 0.02  # busy cores of the prefetched stages, below which they do not slow the script down
PREFETCH_WAITS = 0.5  # share of its time: a consumer that waits longer is limited by the pipeline, not by the GIL
PREFETCH_BETTER = 1.03  # throughput ratio from which on a process is worth its cost
MOST = 64  # parallel jobs, at most
BRIEF, FEW = 5e-3, 4  # seconds of a job, and threads to begin with if jobs are shorter: more would contend for the GIL
ONE = {"threads": "thread", "processes": "process"}


class Window:
    """Measures results under one setting, and their cost. Begins when the setting has settled."""

    def __init__(self) -> None:
        self._begin: tuple[float, ...] | None = None

    def look(self, now: tuple[float, ...], *, settled: bool, seconds: float, results: int) -> tuple[float, ...] | None:
        """`now` is the time, the number of results, and other sums so far. Returns their growth since the window began,
        and begins a new window; None as long as the window is too short."""
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
    """The measurement of a setting."""

    rate: float  # results a second
    cores: float  # cores that were busy
    windows: int = 1  # number of windows, of which rate and cores are means

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
KINDS = ("here", "threads", "processes")  # by cost, the lowest first


class StageTuner:
    """The tuner of one stage. `look` is called after each result, and returns the next setting to try."""

    def __init__(self, how: How, meter: Meter, cores: int, probe: GilProbe | None = None) -> None:
        self._how, self._meter, self._cores = how, meter, cores
        self._probe = probe or GilProbe()
        self._beside: dict[PoolSetting, list[float]] = {}  # results a second while the consumer did not wait
        self._lock_matters = how.kind == "auto"  # until a measurement shows that the GIL does not matter
        kind: Literal["threads", "processes"] = "processes" if how.kind == "processes" else "threads"
        few = kind == "threads" and meter.each < BRIEF
        self.setting = PoolSetting(kind, how.parallel or (min(cores, FEW) if few else cores))
        self.fixed = how.parallel is not None and how.kind in ("threads", "processes")
        self._seen: dict[PoolSetting, Seen] = {}
        self._window = Window()
        # Seconds for a result in the consumer's thread, measured before there was a pool.
        self._here = (meter.work + meter.wait) / meter.jobs if meter.jobs and how == How() else None
        self._alone = 0.0  # results a second to expect from the consumer's thread
        self._pass = 0  # results since the last change

    def look(self, now: float) -> PoolSetting | None:
        """The setting to change to; None: no change."""
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
            pass  # the consumer does the work itself, so all of it counts as waiting
        elif idle < STARVED * passed:
            return self._look_beside(given / passed, cpu / passed)
        if self._beside and self._lock_matters:
            if self.setting.kind == "processes":  # the consumer waits now, and did not wait with threads
                return self._end_beside(next(iter(self._beside)))
            self._beside.clear()
        if self._here is not None and self.setting.kind != "here":
            # In the consumer's thread, the work does not overlap with the consumer's own work.
            self._alone = 1 / (self._here + max(0.0, passed - idle - wait) / given)
        before = self._seen.get(self.setting)
        fresh = Seen(given / passed, cpu / passed)
        self._seen[self.setting] = fresh if before is None else before.and_again(fresh.rate, fresh.cores)
        wanted = next((setting for setting in self._ideas() if setting not in self._seen), None) or self._doubtful()
        if wanted is None:
            self.fixed = True
            wanted = self._best()
            rates = ", ".join(f"{setting} {seen.rate:.3g}/s" for setting, seen in self._seen.items())
            self._meter.notes.append(f"{wanted}: the best of {rates}")
        return self._go(wanted)

    def _go(self, wanted: PoolSetting) -> PoolSetting | None:
        changed = wanted != self.setting
        self.setting, self._window, self._pass = wanted, Window(), 0
        return wanted if changed else None

    def _look_beside(self, rate: float, used: float) -> PoolSetting | None:
        """The consumer does not wait: measures whether threads slow it down through the GIL."""
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
        self._meter.notes.append(f"threads hold the GIL: with threads {kept:.3g}/s, with processes {gave:.3g}/s")
        return self._end_beside(processes if gave > BETTER * kept else threads)

    def _end_beside(self, wanted: PoolSetting) -> PoolSetting | None:
        self._lock_matters = False
        return self._go(wanted)

    def _doubtful(self) -> PoolSetting | None:
        """The next setting close to the best (or the best itself) that was measured only once."""
        best = sorted(self._seen, key=lambda setting: -self._seen[setting].rate)[:FINAL]
        close = [setting for setting in best if self._seen[setting].rate * CLOSE >= self._seen[best[0]].rate]
        return next((setting for setting in close if self._seen[setting].windows < TWICE), None)

    def _ideas(self) -> Iterator[PoolSetting]:
        """Settings that may be faster than the best so far, the most promising first."""
        best = max((setting for setting in self._seen if setting != HERE), key=self._worth)
        used = self._seen[best].cores
        # Cores are idle because of the GIL, or because the work waits. Threads that contend for the GIL keep about one
        # core busy; work that waits uses less than one core, and gains from more threads or processes.
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
            yield HERE  # must be measured again: other work may use the cores since the first estimate

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
        """The throughput, reduced for processes, because they cost memory and start-up time."""
        return self._seen[setting].rate / (BETTER if setting.kind == "processes" else 1)

    def _best(self) -> PoolSetting:
        """The smallest setting whose throughput is about the best."""
        top = max(seen.rate for seen in self._seen.values())
        good = [setting for setting, seen in self._seen.items() if seen.rate * self._margin(setting) >= top]
        return min(good, key=lambda setting: (KINDS.index(setting.kind), setting.size))

    def _margin(self, setting: PoolSetting) -> float:
        return BETTER if setting.kind != "processes" and self._top().kind == "processes" else SAME

    def _top(self) -> PoolSetting:
        return max(self._seen, key=lambda setting: self._seen[setting].rate)


class HasStages(Protocol):
    """The meters and losses of the stages before a prefetch."""

    meters: list[Meter]
    losses: LostSamples


class PrefetchTuner:
    """Chooses a thread or a process for one prefetch, for all epochs. A thread takes the GIL from the script, and no
    meter shows the cost. So both are tried, and the process is kept if the script gets faster."""

    def __init__(self, meter: Meter, stages: HasStages | None) -> None:
        self.in_process = False
        self._meter, self._stages = meter, stages  # None: the choice is final
        self._kept = 0.0  # results a second with the thread
        self._again()

    def _again(self) -> None:
        self._passed, self._results = 0.0, 0
        self._last: float | None = None
        self._window = Window()

    def pause(self) -> None:
        """A loop ends: time between two loops does not count."""
        self._last = None

    def never(self) -> None:
        """The stages cannot run in a process: stay with the thread."""
        self.in_process, self._stages = False, None

    def look(self, now: float) -> bool:
        """Called after each result. Returns whether to change between thread and process."""
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
        # Ready results are made again after a change, so samples that were left out would be counted twice.
        if waited > PREFETCH_WAITS * passed or busy < PREFETCH_BUSY * passed or self._stages.losses.count:
            return False
        self._kept, self.in_process = rate, True
        return True

    def _decide(self, rate: float) -> bool:
        self._stages = None
        self.in_process = rate > PREFETCH_BETTER * self._kept
        self._meter.notes.append(f"with a thread {self._kept:.3g}/s, with a process {rate:.3g}/s")
        return not self.in_process


# -- whether threads hold the GIL -------------------------------------------------------------------------------------
# Threads that hold the GIL slow the consumer down, even if the pipeline keeps up, and the meters show only a slow
# consumer. So a thread sleeps for a moment, again and again, and measures its delay: short if other threads release the
# GIL, and a whole switch interval if they do not.


NAPS = 60
NAP = 0.001  # seconds
LATE = 0.6  # of a switch interval: a longer delay counts as late
OFTEN = 0.1  # share of late naps from which on the GIL counts as held


class GilProbe:
    """`holds` starts the measurement at its first call. Costs nothing after the measurement."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._late = 0

    def holds(self) -> bool | None:
        """Whether other threads hold the GIL; None: not known yet."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="paceline-gil-probe", daemon=True)
            self._thread.start()
        return None if self._thread.is_alive() else self._late > OFTEN * NAPS

    def _look(self) -> None:
        late = NAP + LATE * sys.getswitchinterval()
        for _ in range(NAPS):
            began = time.perf_counter()
            time.sleep(NAP)
            self._late += time.perf_counter() - began > late
