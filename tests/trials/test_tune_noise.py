"""What `tune` says on a machine with stalls, drifts and two-fold slowdowns, and where the budget is short."""

from __future__ import annotations

import pytest
from machine import Machine, Weather, compute_bound, launch_bound, tuned_already

from paceline.cli.tune import keep
from paceline.reports.terminal import show
from paceline.reports.tune import report
from paceline.settings import RunSettings
from paceline.trials.tune.candidates import candidates
from paceline.trials.tune.preset import find_preset
from paceline.trials.tune.search import Search
from paceline.trials.tune.trials import Trials
from paceline.trials.tune.verdict import Known, Reason, Verdict

SEEDS = 200
ON_CPU = candidates(gpus=0, cores=2, workers=1, threads=2)
ON_GPU = candidates(gpus=1, cores=8, workers=1, threads=8)
TRIED = (Reason.NO_GAIN, Reason.REFUSED, Reason.FAILED, Reason.REDUNDANT, Reason.OUTDONE)


def loads_slowly(mods: frozenset[str]) -> float:
    return 500.0 * (1.5 if "resident" in mods else 1.3 if "loader=fast" in mods else 1.0)


def was_measured(machine: Machine, mods: list[str], speed: float) -> bool:
    """Whether some trials of these mods were slower, and some faster, or as fast."""
    speeds = [trial.samples_per_s for trial in machine.journal.values() if trial.ok and {*trial.mods} == {*mods}]
    return min(speeds) * (1 - 1e-9) <= speed <= max(speeds) * (1 + 1e-9)


def tune(machine: Machine, tried=ON_CPU) -> Verdict:
    search = Search(machine, tried, budget=machine.budget.seconds, enough=1.0)
    search.carry_out()
    return search.verdict()


def test_over_200_noisy_machines_no_gain_is_claimed_outside_its_interval():
    false, claims, useful = [], 0, 0
    truths = ((tuned_already, ON_GPU), (loads_slowly, ON_CPU), (launch_bound, ON_GPU), (compute_bound, ON_GPU))
    for seed in range(SEEDS):
        truth, tried = truths[seed % len(truths)]
        budget = (90, 120, 300)[seed // len(truths) % 3]
        machine = Machine(truth, weather=Weather(seed), seed=seed, budget=budget, trial=7, fresh=5)
        verdict = tune(machine, tried)
        told, codes = verdict.conclusion, {row.code for row in verdict.mods}
        assert verdict.final is not None
        assert (told.known is Known.GAIN) == bool(verdict.final.mods)
        assert bool(codes & {Reason.NOT_CONFIRMED, Reason.NOT_DELIVERED}) or told.known is not Known.NOT_CONFIRMED
        assert "that" not in told.sentence or " gained " in told.sentence, "what was not repeated is named"
        if told.known is Known.NO_GAIN:
            assert codes <= {*TRIED}, "nothing to gain is said only where all were tried"
            assert not verdict.cut_short, "beside it nothing says that some were not tried"
        if told.known is Known.NOT_TRIED:
            assert Reason.NOT_TRIED in codes
            assert "not tried, because the budget ended" in told.sentence
        for row in verdict.mods:
            assert row.gain is None or row.after / row.before == pytest.approx(row.gain), "a row's figures agree"
            assert row.gain is None or was_measured(machine, row.on, row.before), "and were measured"
        if verdict.final.mods:
            claims += 1
            true = truth(frozenset(verdict.final.mods)) / truth(frozenset())
            useful += true > 1.2
            if not verdict.final.gain_low <= true <= verdict.final.gain_high:
                false.append(seed)
    assert len(false) <= 0.05 * claims, false  # margins of a third give twice as many
    assert useful > SEEDS / 3, "silence would be safe, and of no use"


def test_where_nothing_needs_a_check_its_time_goes_into_trials():
    """Three trials of the script as it is, and 62 s left: 'no mod gains more than the noise', and none was tried."""
    for seed in range(10):
        machine = Machine(tuned_already, noise=0.6, seed=seed, budget=90, trial=9)
        verdict = tune(machine, ON_GPU)
        assert machine.budget.left < 2 * machine.trial + 8 + 2
        assert any(row.code is not Reason.NOT_TRIED for row in verdict.mods)
        assert verdict.conclusion.known is not Known.NO_GAIN


@pytest.mark.parametrize(("slower", "enough", "most"), [(0.98, None, 2), (0.7, 0.5, 8)])
def test_a_noisy_machine_gets_more_and_shorter_pairs(slower, enough, most):
    """Every other trial is slower, and the mod gains a little: too little for a few pairs."""
    asked = []

    class Unsteady(Machine):
        def measure(self, name, **rest):
            asked.append(rest.get("enough"))
            measured = super().measure(name, **rest)
            measured.samples_per_s = (104.0 if rest["mods"] else 100.0) * (slower if len(asked) // 2 % 2 else 1.0)
            return measured

    trials = Trials(Unsteady(loads_slowly, budget=3000), {}, enough=1.0)
    for number in range(1, 5):
        trials.baseline(f"baseline.r{number}")
    asked.clear()
    assert trials.measure(("loader=fast",), best=()).ok
    assert len(trials.pairs((), ("loader=fast",), best=())) == most
    assert set(asked) == {enough}


def test_a_gain_without_time_to_repeat_it_goes_to_the_last_check():
    machine = Machine(loads_slowly, noise=0.02, budget=95, trial=10, fresh=2)
    verdict = tune(machine, [one for one in ON_CPU if one.mod == "resident"])
    assert verdict.final.mods == ["resident"]
    assert verdict.mods[0].code is Reason.GAINS


def test_what_was_tried_and_what_was_not_is_said(capsys):
    from rich.console import Console

    def said(verdict: Verdict) -> str:
        show(Console(width=200), report(verdict))
        return capsys.readouterr().out

    everything = tune(Machine(tuned_already, budget=3000), ON_GPU)
    assert everything.conclusion.known is Known.NO_GAIN
    assert "Nothing to gain: no mod gains more than the noise" in said(everything)
    some = tune(Machine(tuned_already, budget=65, trial=7), ON_GPU)
    assert some.conclusion.known is Known.NOT_TRIED
    assert "12 mods were not tried, because the budget ended" in said(some)
    assert "nothing to gain" not in said(some)
    assert some.conclusion.short.endswith("mods were not tried")


def test_the_preset_says_what_the_search_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "record").mkdir()
    verdict = tune(Machine(tuned_already, budget=65, trial=7), ON_GPU)
    keep(verdict, RunSettings(script="train.py"), tmp_path / "record", hosts=[], cuda=False)
    preset, _ = find_preset(str(tmp_path / "record"), "train.py", module=False, records=tmp_path)
    assert preset.mods == []
    assert preset.said == verdict.conclusion.sentence
