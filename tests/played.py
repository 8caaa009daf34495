"""A clock for scripts of tests that moves when it is told to: how long a step takes is then known, on any machine.

`CLOCK` stands at the beginning of a script. It gives the recorder of each worker a clock of its own, and the script
`spend(seconds)`, which moves it. Whoever waits for other workers leaves when the last one has come, as in real time.
"""

from __future__ import annotations

CLOCK = """\
import time
from contextlib import contextmanager
from paceline.comm import stopwatch
from paceline.comm.group import Group

class Clock:
    now, meetings = time.perf_counter() + 10.0, 0  # the first step holds what came before: surely warm-up

    def perf_counter(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds

    @contextmanager
    def waiting(self, group, what, plain=Group.waiting, **how):
        with plain(group, what, **how):
            yield
            self.meetings += 1
            group._store.set(f"played{self.meetings}.{group.rank}", repr(self.now))
            came = [group._store.get(f"played{self.meetings}.{rank}") for rank in range(group.world)]
            self.now = max(map(float, came))

# No variable of the script: a model that changes one depending on its rows is not computed in slices.
stopwatch.time = Clock()
spend = stopwatch.time.spend
Group.waiting = lambda group, what, **how: stopwatch.time.waiting(group, what, **how)
"""
