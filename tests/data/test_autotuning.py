"""Autotuning, on work that is only played: which setting is found, and when nothing is tried."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import paceline.data as pd
from paceline.data.execution.autotune import GilProbe, PoolSetting, StageTuner
from paceline.data.execution.engines import TunedPool
from paceline.data.meters import Meter
from paceline.data.planning.stages import How

pytestmark = pytest.mark.usefixtures("nothing_left")


def tuned(rate: Any, cores_used: Any, how: How, cores: int = 4, meter: Meter | None = None) -> tuple[PoolSetting, int]:
    """The setting that is found for work that gives `rate(setting)` results a second, and how many were tried."""
    meter = meter or Meter("played")
    tuner = StageTuner(how, meter, cores)
    now, tried = 0.0, {tuner.setting}
    for _ in range(20_000):
        if tuner.fixed:
            break
        step = 1 / rate(tuner.setting)
        now += step
        meter.given += 1
        meter.idle += 0.0 if tuner.setting.kind == "here" else step
        meter.cpu += step * cores_used(tuner.setting)
        tuner.look(now)
        tried.add(tuner.setting)
    assert tuner.fixed
    return tuner.setting, len(tried)


def test_work_that_computes_and_lets_go_of_the_lock_gets_a_thread_for_each_core() -> None:
    found, _ = tuned(lambda s: 100 * min(s.size, 4), lambda s: min(s.size, 4), How())
    assert found == PoolSetting("threads", 4)


def test_brief_work_begins_with_few_threads_and_gets_one_for_each_core_where_that_helps() -> None:
    for seconds, first in ((1e-3, 4), (0.1, 16)):
        meter = Meter("played")
        meter.add(1, seconds, seconds)
        assert StageTuner(How(), meter, 16).setting == PoolSetting("threads", first)
        found, _ = tuned(lambda s: 100 * min(s.size, 16), lambda s: min(s.size, 16), How(), 16, meter)
        assert found == PoolSetting("threads", 16)


def test_work_that_holds_the_lock_gets_processes() -> None:
    found, tried = tuned(
        lambda s: 90 * min(s.size, 4) if s.kind == "processes" else 100,
        lambda s: min(s.size, 4) if s.kind == "processes" else 1,
        How(),
    )
    assert found == PoolSetting("processes", 4)
    assert tried < 8


def test_work_that_waits_gets_many() -> None:
    found, _ = tuned(lambda s: 10 * min(s.size, 32), lambda s: 0.01 * s.size, How())
    assert found.kind == "threads"
    assert 30 <= found.size <= 33


def test_work_that_waits_stays_in_threads_though_processes_once_looked_better() -> None:
    def rate(setting: PoolSetting) -> float:
        return 10 * min(setting.size, 32) * (1.3 if setting == PoolSetting("processes", 4) else 1.0)

    found, _ = tuned(rate, lambda s: 0.01 * s.size, How())
    assert found.kind == "threads"
    assert 30 <= found.size <= 33


def test_work_that_holds_the_lock_on_a_busy_machine_gets_processes_too() -> None:
    """Others leave it a third of a core: it looks like work that waits."""
    found, _ = tuned(
        lambda s: 30 * min(s.size, 4) if s.kind == "processes" else 33,
        lambda s: 0.3 * min(s.size, 4) if s.kind == "processes" else 0.33,
        How(),
    )
    assert found.kind == "processes"


def test_work_that_costs_more_to_hand_over_than_to_do_goes_back() -> None:
    meter = Meter("played")
    meter.jobs, meter.work = 10, 0.02  # 2 ms each, here
    assert tuned(lambda s: 300, lambda s: 1.0, How(), meter=meter)[0] == PoolSetting("here", 1)
    meter = Meter("played")
    meter.jobs, meter.work = 10, 0.02
    assert tuned(lambda s: 300 * min(s.size, 4), lambda s: min(s.size, 4), How(), meter=meter)[0].kind == "threads"


def test_work_that_went_back_goes_on_here() -> None:
    pipeline = pd.items(list(range(40))).map_and_batch(lambda number: {"y": number}, 4)
    jobs = pipeline._plan().nodes[-1]
    pool = TunedPool(jobs, How(), jobs.meter)
    stream = iter(pipeline)
    cursor = pipeline._run.cursor
    cursor._pool, cursor._chosen = pool, True
    first = next(stream)
    pool._tuner.fixed, pool._setting = True, PoolSetting("here", 1)
    pool._old.append(pool._engine)
    pool._engine, pool._outstanding = pool._start(PoolSetting("here", 1)), 3
    found = [first["y"].tolist(), *(batch["y"].tolist() for batch in stream)]
    assert found == [list(range(at, at + 4)) for at in range(0, 40, 4)]
    assert "here" in str(pipeline.report())
    pool.close(wait=True)
    pipeline.close()


def test_what_is_asked_for_stays() -> None:
    assert tuned(lambda s: 10 * min(s.size, 2), lambda s: s.size, How(kind="processes"), 2)[0].kind == "processes"
    assert tuned(lambda s: 10 * s.size, lambda s: 0.1, How(parallel=3))[0].size == 3
    assert StageTuner(How(kind="threads", parallel=3), Meter(""), 8).fixed


def test_nothing_is_tried_while_the_consumer_is_slower() -> None:
    meter = Meter("played")
    tuner = StageTuner(How(), meter, 4)
    for step in range(1000):
        meter.given += 1
        assert tuner.look(step * 0.01) is None


def test_a_promise_from_before_is_measured_before_work_goes_back() -> None:
    """It took 2 ms each when nobody else used the cores; now it takes 10."""
    meter = Meter("played")
    meter.jobs, meter.work = 10, 0.02
    found, _ = tuned(lambda s: 100 if s.kind == "here" else 300, lambda s: 1.0, How(), meter=meter)
    assert found.kind == "threads"


def test_a_lucky_window_is_not_believed() -> None:
    """With 5 threads it once went half as fast again, by chance."""
    visits: list[PoolSetting] = []

    def rate(setting: PoolSetting) -> float:
        if not visits or visits[-1] != setting:
            visits.append(setting)
        lucky = setting.size == 5 and visits.count(setting) == 1
        return 430.0 if lucky else {4: 400.0, 5: 300.0}.get(setting.size, 100.0 * min(setting.size, 3))

    found, _ = tuned(rate, lambda s: min(s.size, 4), How())
    assert visits.count(PoolSetting("threads", 5)) == 2
    assert found == PoolSetting("threads", 4)


def test_the_best_is_measured_again_also_where_nothing_comes_near() -> None:
    """With 5 threads it once went three times as fast, when the machine was free for a moment."""
    visits: list[PoolSetting] = []

    def rate(setting: PoolSetting) -> float:
        if not visits or visits[-1] != setting:
            visits.append(setting)
        lucky = setting.size == 5 and visits.count(setting) == 1
        return 700.0 if lucky else 300.0 if setting.size == 5 else 520.0 if setting.size == 4 else 200.0

    assert tuned(rate, lambda s: min(s.size, 4), How())[0] == PoolSetting("threads", 4)


class PlayedGrip(GilProbe):
    def __init__(self, *answers: bool | None) -> None:
        super().__init__()
        self.answers = list(answers)

    def holds(self) -> bool | None:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def beside(rate: Any, *answers: bool | None, waits: Any = lambda s: False, cpu: float = 0.9) -> list[PoolSetting]:
    """The settings that are gone through while the consumer gets so many results and does not wait for them."""
    meter = Meter("played")
    tuner = StageTuner(How(), meter, 2, PlayedGrip(*answers))
    now, seen = 0.0, [tuner.setting]
    for _ in range(2000):
        step = 1 / rate(tuner.setting)
        now += step
        meter.given += 1
        meter.cpu += step * cpu
        meter.idle += step if waits(tuner.setting) else 0.0
        wanted = tuner.look(now)
        assert wanted is None or wanted == tuner.setting
        seen += [] if wanted is None else [wanted]
    return seen


def slowed(setting: PoolSetting) -> float:
    return 90.0 if setting.kind == "processes" else 60.0


THREADS, PROCESSES = PoolSetting("threads", 2), PoolSetting("processes", 2)


def test_threads_that_keep_the_consumer_from_its_own_work_become_processes() -> None:
    assert beside(slowed, None, None, True) == [THREADS, PROCESSES]


def test_processes_go_again_where_the_consumer_gets_no_more_done() -> None:
    assert beside(lambda s: 60.0, True) == [THREADS, PROCESSES, THREADS]
    assert beside(slowed, True, waits=lambda s: s.kind == "processes")[:3] == [THREADS, PROCESSES, THREADS]


def test_processes_are_not_tried_beside_work_that_holds_no_lock_or_only_waits() -> None:
    assert beside(slowed, False) == [THREADS]
    assert beside(slowed, True, cpu=0.01) == [THREADS]


@pytest.mark.parametrize(("late", "holds"), [(0.0001, False), (0.005, True)])
def test_the_lock_is_held_where_a_thread_comes_late_to_it(
    late: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Played:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds + late

    monkeypatch.setattr("paceline.data.execution.autotune.time", Played())
    probe = GilProbe()
    while (told := probe.holds()) is None:
        pass
    assert told is holds


def test_a_thread_that_computes_in_python_holds_the_lock() -> None:
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    probe = GilProbe()
    try:
        while (told := probe.holds()) is None:
            ended.wait(0.01)
    finally:
        ended.set()
        thread.join()
    assert told


def test_settings_in_words() -> None:
    said = [str(PoolSetting(kind, size)) for kind in ("here", "threads", "processes") for size in (1, 2)]
    assert said == ["here", "here", "1 thread", "2 threads", "1 process", "2 processes"]
