"""The plan of a scaling measurement and the arithmetic of its verdict."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from records import step, write_record

from paceline.launch.cluster.hosts import HostSpec
from paceline.record import Outcome
from paceline.reports.scale import charts
from paceline.settings import RunSettings
from paceline.trials.scale import series
from paceline.trials.scale.border import steps_sentence

SETTINGS = RunSettings(script="train.py", steps=30)


class Launcher:
    """Stands in for `launch`: writes a record whose steps take so many seconds at so many workers."""

    def __init__(self, seconds: dict[int, list[float]], losses: dict[int, list[float]] | None = None) -> None:
        self.seconds = {workers: list(each) for workers, each in seconds.items()}
        self.losses = losses or {}
        self.launched: list[int] = []
        self.fails: dict[int, str] = {}
        self.interrupts: int | None = None  # at this number of workers

    def __call__(self, run, *, zygote, record, on_event, verb, oversubscribe) -> Outcome:
        self.launched.append(run.workers)
        seconds = self.seconds[run.workers].pop(0)
        losses = self.losses.get(run.workers, [1 / k for k in range(1, 31)])
        by_rank = [
            [step(k, own=seconds, communication=0.0, loss=loss) for k, loss in enumerate(losses, 1)]
            for _ in range(run.workers)
        ]
        message = self.fails.get(run.workers, "")
        outcome = write_record(record, by_rank, exit_code=int(bool(message)), message=message)
        if self.interrupts == run.workers:
            outcome.interrupted, outcome.exit_code = True, 130
        return outcome


def measure(launcher: Launcher, tmp_path: Path, monkeypatch, workers=(1, 2), rounds=3, mode="strong") -> series.Verdict:
    monkeypatch.setattr(series, "launch", launcher)
    plan = series.plan(SETTINGS, workers, rounds=rounds, mode=mode)
    results = series.carry_out(
        plan,
        zygote=None,
        record=tmp_path,
        on_event=lambda event: None,
        on_start=lambda trial: None,
        on_result=lambda result: None,
    )
    interrupted = any(result.interrupted for result in results)
    return series.judge(results, mode=mode, record=tmp_path, interrupted=interrupted)


def test_trials_are_interleaved_in_rounds():
    plan = series.plan(SETTINGS, [4, 1, 2, 1], rounds=2, mode="strong")
    assert [(t.round, t.workers) for t in plan] == [(1, 1), (1, 2), (1, 4), (2, 4), (2, 2), (2, 1)]
    assert {t.settings.seed for t in plan} == {0}
    assert {t.settings.batch for t in plan} == {"keep"}


def test_weak_scaling_keeps_each_workers_batch():
    assert {t.settings.batch for t in series.plan(SETTINGS, [1, 2], rounds=1, mode="weak")} == {"scale"}


def test_speed_is_the_median_round_and_the_spread_its_ends(tmp_path, monkeypatch):
    verdict = measure(Launcher({1: [0.064, 0.128, 0.064], 2: [0.032, 0.04, 0.064]}), tmp_path, monkeypatch)
    one, two = verdict.points
    assert (one.samples_per_s, one.low, one.high) == pytest.approx((1000, 500, 1000))
    assert (two.samples_per_s, two.low, two.high) == pytest.approx((1600, 1000, 2000))
    assert two.speedup == pytest.approx(1.6)
    assert (two.rounds, len(two.why.lost)) == (3, 0)
    assert two.speedup_low < 1.6 < two.speedup_high
    assert (one.efficiency, two.efficiency) == pytest.approx((1.0, 0.8))
    assert "The rounds differ by up to 100 %" in verdict.warning
    assert two.tied, "the rounds differ too much"


def test_a_difference_beyond_the_interval_is_no_tie(tmp_path, monkeypatch):
    verdict = measure(Launcher({1: [0.064, 0.066, 0.065], 2: [0.040, 0.041, 0.040]}), tmp_path, monkeypatch)
    assert [point.tied for point in verdict.points] == [False, False]
    assert verdict.points[1].speedup_low > 1.5
    assert (verdict.warning, verdict.tie) == ("", "")


def test_two_rounds_tell_nothing_from_chance(tmp_path, monkeypatch):
    verdict = measure(Launcher({1: [0.064, 0.066], 2: [0.040, 0.041]}), tmp_path, monkeypatch, rounds=2)
    assert [point.tied for point in verdict.points] == [False, True]
    assert verdict.tie.startswith("fewer than 3 rounds")


def test_a_round_that_differs_from_the_others_is_run_again(tmp_path, monkeypatch):
    launcher = Launcher({1: [0.064, 0.065, 1.0, 0.064], 2: [0.040, 0.041, 0.040, 0.041]})
    verdict = measure(launcher, tmp_path, monkeypatch)
    assert launcher.launched == [1, 2, 2, 1, 1, 2, 2, 1]
    two = verdict.points[1]
    assert two.rounds == verdict.rounds == 4
    assert two.speedup == pytest.approx(0.0645 / 0.0405, rel=1e-3)
    assert not two.tied
    assert 1.5 < two.speedup_low < two.speedup_high < 1.7


def test_rounds_that_never_agree_end(tmp_path, monkeypatch):
    ones = [0.064, 0.064, 1.0, 16.0, 256.0, 4096.0, 65536.0]
    launcher = Launcher({1: ones, 2: [0.064] * len(ones)})
    assert measure(launcher, tmp_path, monkeypatch).rounds <= 3 + series.AGAIN


def test_without_one_worker_the_fewest_are_the_base(tmp_path, monkeypatch):
    verdict = measure(Launcher({2: [0.032], 4: [0.016]}), tmp_path, monkeypatch, workers=(2, 4), rounds=1)
    assert verdict.base == 2
    assert verdict.points[1].speedup == pytest.approx(2.0)
    assert [point.efficiency for point in verdict.points] == [None, None], "efficiency is that of one worker"
    assert not verdict.points[1].why.lost
    assert not verdict.points[1].why.sentence
    assert [chart.name for chart in charts(verdict)] == ["speed"]


def test_each_trial_has_a_record_of_its_own(tmp_path, monkeypatch):
    measure(Launcher({1: [0.1, 0.1], 2: [0.1, 0.1]}), tmp_path, monkeypatch, rounds=2)
    assert sorted(p.name for p in (tmp_path / "trials").iterdir()) == [
        "round1-workers1",
        "round1-workers2",
        "round2-workers1",
        "round2-workers2",
    ]


def test_other_losses_are_other_numbers(tmp_path, monkeypatch):
    launcher = Launcher({1: [0.1], 2: [0.1]}, losses={1: [1.0, 0.5], 2: [1.0, 0.6]})
    same = measure(launcher, tmp_path, monkeypatch, rounds=1).same_numbers
    assert same.checked
    assert same.same is False
    assert (same.workers, same.step) == (2, 2)


def test_weak_losses_are_not_compared(tmp_path, monkeypatch):
    same = measure(Launcher({1: [0.1], 2: [0.1]}), tmp_path, monkeypatch, rounds=1, mode="weak").same_numbers
    assert not same.checked
    assert "--weak" in same.why


def test_a_script_that_does_not_repeat_itself_is_said_so(tmp_path, monkeypatch):
    class Drifting(Launcher):
        def __call__(self, run, **rest):
            self.losses = {run.workers: [1.0, 0.5 + 0.1 * len(self.launched)]}
            return super().__call__(run, **rest)

    same = measure(Drifting({1: [0.1, 0.1], 2: [0.1, 0.1]}), tmp_path, monkeypatch, rounds=2).same_numbers
    assert not same.checked
    assert "is not deterministic" in same.why


def test_a_number_of_workers_that_fails_is_tried_once_and_reported(tmp_path, monkeypatch):
    launcher = Launcher({1: [0.1, 0.1], 2: [0.1, 0.1], 3: [0.1, 0.1]})
    launcher.fails = {2: "rank 1 on here ran out of memory"}
    verdict = measure(launcher, tmp_path, monkeypatch, workers=(1, 2, 3), rounds=2)
    assert launcher.launched == [1, 2, 3, 3, 1]
    assert [p.workers for p in verdict.points] == [1, 3]
    [failure] = verdict.failures
    assert (failure.workers, failure.round, failure.message) == (2, 1, "rank 1 on here ran out of memory")


def test_when_the_base_fails_nothing_else_is_tried(tmp_path, monkeypatch):
    launcher = Launcher({1: [0.1], 2: [0.1]})
    launcher.fails = {1: "no module named numpi"}
    verdict = measure(launcher, tmp_path, monkeypatch)
    assert launcher.launched == [1]
    assert verdict.points == []
    assert not verdict.same_numbers.checked


def test_a_script_without_a_step_is_a_failure(tmp_path, monkeypatch):
    verdict = measure(Launcher({1: [0.1]}, losses={1: []}), tmp_path, monkeypatch, workers=(1,))
    assert "no optimizer step" in verdict.failures[0].message


def test_steps_without_samples_are_a_failure(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "step", functools.partial(step, samples=0))
    verdict = measure(Launcher({1: [0.1]}), tmp_path, monkeypatch, workers=(1,))
    assert "samples of the script's steps cannot be counted" in verdict.failures[0].message


@pytest.mark.parametrize("mode", ["strong", "weak"])
def test_each_point_says_why(tmp_path, monkeypatch, mode):
    verdict = measure(Launcher({1: [0.1, 0.12, 0.11], 2: [0.05, 0.08, 0.06]}), tmp_path, monkeypatch, mode=mode)
    for point in verdict.points:
        assert point.why is not None
        assert sum(point.why.lost.values()) == pytest.approx(1 - point.efficiency)
        assert point.why.seconds["total"] == pytest.approx(64 / point.samples_per_s)
    one, two = verdict.points
    assert one.why.sentence == ""
    assert "largest cause is compute" in two.why.sentence


def test_an_interrupt_ends_it_and_the_rest_still_counts(tmp_path, monkeypatch):
    launcher = Launcher({1: [0.1], 2: [0.1]})
    launcher.interrupts = 2
    verdict = measure(launcher, tmp_path, monkeypatch)
    assert launcher.launched == [1, 2]
    assert verdict.interrupted
    assert [p.workers for p in verdict.points] == [1]
    assert verdict.failures == []


def test_the_charts_have_every_point_and_what_efficiency_is_lost_to(tmp_path, monkeypatch):
    verdict = measure(Launcher({1: [0.1] * 3, 2: [0.04] * 3}), tmp_path, monkeypatch)
    speed, lost = charts(verdict)
    perfect, measured = speed.series
    assert list(measured.x) == [1, 2]
    assert list(measured.y) == [p.samples_per_s for p in verdict.points]
    assert list(perfect.y) == [verdict.points[0].samples_per_s * n for n in (1, 2)]
    assert list(lost.series[0].y) == [p.efficiency for p in verdict.points]


HOSTS = [HostSpec("a", 4), HostSpec("b", 4)]


def test_on_several_hosts_the_same_workers_run_with_and_without_the_border():
    plan = series.plan(SETTINGS, [2, 4, 8], rounds=2, mode="strong", hosts=HOSTS)
    assert [(t.workers, t.settings.spread, t.hosts) for t in plan[:4]] == [(2, 0, 1), (4, 0, 1), (4, 2, 2), (8, 0, 2)]
    assert [trial.name for trial in plan[4:6]] == ["round2-workers8", "round2-workers4-hosts2"]
    assert not any(t.settings.spread for t in series.plan(SETTINGS, [1, 8], rounds=1, mode="strong", hosts=HOSTS))
    uneven = [HostSpec("a", 6), HostSpec("b", 1)]
    assert [
        (t.workers, t.settings.spread) for t in series.plan(SETTINGS, [2, 6], rounds=1, mode="strong", hosts=uneven)
    ] == [
        (2, 0),
        (2, 2),
        (6, 0),
    ]


def over_hosts(monkeypatch, tmp_path, apart: list[float]) -> series.Verdict:
    """2, 4 and 8 workers; 4 on one host take 0.05 s a step, and `apart` on two."""
    seconds = {(2, 0): 0.1, (4, 0): 0.05, (8, 0): 0.04}

    def launch(run, *, record, **_) -> Outcome:
        own = apart.pop(0) if run.spread else seconds[run.workers, 0]
        communication = own - 0.05 if run.spread else 0.0
        made = [step(k, own=own - communication, communication=communication) for k in range(1, 31)]
        return write_record(record, [made] * run.workers)

    monkeypatch.setattr(series, "launch", launch)
    results = series.carry_out(
        series.plan(SETTINGS, [2, 4, 8], rounds=3, mode="strong", hosts=HOSTS),
        zygote=None,
        record=tmp_path,
        on_event=lambda event: None,
        on_start=lambda trial: None,
        on_result=lambda result: None,
    )
    return series.judge(results, mode="strong", record=tmp_path, interrupted=False)


def test_the_verdict_names_the_border_and_what_it_costs(monkeypatch, tmp_path):
    verdict = over_hosts(monkeypatch, tmp_path, [0.1, 0.1, 0.1])
    assert [(p.workers, p.hosts) for p in verdict.points] == [(2, 1), (4, 1), (8, 2)]
    assert [p.added and round(p.added, 3) for p in verdict.points] == [None, 1.0, 0.625]
    said = steps_sentence(verdict.points)
    assert "4 → 8 workers (1 → 2 hosts) 62 %" in said or "4 → 8 workers (1 → 2 hosts) 63 %" in said
    assert "Within hosts: 2 → 4 workers 100 %" in said
    assert verdict.border is not None
    assert verdict.border.kept == pytest.approx(0.5)
    assert verdict.border.lost["communication"] == pytest.approx(0.5)
    assert "4 workers on 2 hosts instead of one have 0.50× the speed" in verdict.border.sentence
    assert "50 points go to communication" in verdict.border.sentence


def test_a_slow_second_host_is_named_and_not_the_network(monkeypatch, tmp_path):
    def launch(run, *, record, **_) -> Outcome:
        late = 0.03 if run.spread or run.workers > 4 else 0.0  # on the second host; the others wait for it
        slow = range(run.workers // 2, run.workers)
        made = [
            [step(k, own=0.05 + late * (r in slow), communication=late * (r not in slow)) for k in range(1, 31)]
            for r in range(run.workers)
        ]
        return write_record(record, made)

    monkeypatch.setattr(series, "launch", launch)
    results = series.carry_out(
        series.plan(SETTINGS, [2, 8], rounds=3, mode="strong", hosts=HOSTS),
        zygote=None,
        record=tmp_path,
        on_event=lambda event: None,
        on_start=lambda trial: None,
        on_result=lambda result: None,
    )
    border = series.judge(results, mode="strong", record=tmp_path, interrupted=False).border
    assert border is not None
    assert border.lost["imbalance"] > 0.1 > border.lost["communication"]
    assert border.waited_for == 1
    assert "the others wait for rank 1" in border.sentence


def test_a_border_within_the_noise_costs_nothing_that_is_told(monkeypatch, tmp_path):
    border = over_hosts(monkeypatch, tmp_path, [0.06, 0.05, 0.05, 0.05, 0.06, 0.055]).border
    assert border is not None
    assert border.tied
    assert not border.lost
    assert "no difference" in border.sentence


def test_on_one_host_there_is_no_border(monkeypatch, tmp_path):
    verdict = measure(Launcher({1: [0.1] * 6, 2: [0.05] * 6}), tmp_path, monkeypatch)
    assert verdict.border is None
    assert steps_sentence(verdict.points) == ""
