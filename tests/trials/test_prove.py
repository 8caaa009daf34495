"""Findings are proven: each mod in several rounds, against the script as it is, measured round it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.advise.finding import Finding
from paceline.trials.core.result import Measured, Status
from paceline.trials.tune.prove import error, prove


class Bench:
    """A machine whose every speed is known, and that gets faster by a hundredth from trial to trial."""

    def __init__(
        self,
        speeds: dict[str, float],
        failures: dict[str, str] | None = None,
        noise: dict[str, tuple[float, ...]] | None = None,
        most: int = 1000,
    ) -> None:
        self.speeds, self.failures = speeds, failures or {}
        self.noise, self.most = noise or {}, most  # factors of the trials of a mod in turn; trials within the budget
        self.made: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []

    def measure(self, name: str, *, mods: tuple[str, ...] | None = None, **changes: Any) -> Measured:
        self.made.append((name, mods or (), changes))
        mod = name.rpartition(".r")[0]
        if len(self.made) > self.most:
            return Measured(name=name, mods=[], workers=1, status=Status.BUDGET, message="not run: the budget is over")
        if mod in self.failures:
            return Measured(name=name, mods=[], workers=1, status=Status.MEMORY, message=self.failures[mod])
        speed = 1.0
        asked = (f"{key}={value}" for key, value in changes.items() if key not in ("enough", "steps"))
        for applied in (*(mods or ()), *asked):
            speed *= self.speeds[applied]
        drift = 1 + 0.01 * len(self.made)
        again = sum(made.rpartition(".r")[0] == mod for made, _, _ in self.made)
        factors = self.noise.get(mod, (1.0,))
        speed *= 100 * drift * factors[(again - 1) % len(factors)]
        return Measured(
            name=name, mods=[], workers=1, status=Status.OK, samples_per_s=speed, low=0.95 * speed, high=1.05 * speed
        )


def finding(rule: str, mod: str, predicted: float | None = 1.5) -> Finding:
    return Finding(rule=rule, title=rule, evidence=[], advice="", mod=mod, predicted_gain=predicted)


def test_predicted_stands_beside_measured(tmp_path):
    bench = Bench({"tf32": 1.4, "resident": 1.2, "workers=2": 1.9, "batch=x4": 3.0})
    found = [finding("a", "tf32"), finding("b", "resident"), finding("c", ""), finding("d", "workers=2")]
    found += [finding("e", "batch=x4"), finding("f", "tf32", None)]
    assert prove(bench, found)
    assert [one.measured_gain for one in found] == [
        pytest.approx(1.4, rel=0.03),
        pytest.approx(1.2, rel=0.03),
        None,
        pytest.approx(1.9, rel=0.03),
        pytest.approx(3.0, rel=0.03),
        pytest.approx(1.4, rel=0.03),
    ]
    assert found[2].proof == "by hand: no mod to try"
    assert "off by" in found[4].proof
    assert "off by" not in found[0].proof
    # Each mod once a round, the script as it is before, between and after.
    names = [name for name, _, _ in bench.made]
    assert names[:6] == ["baseline.r1", "tf32.r1", "resident.r1", "workers=2.r1", "batch=x4.r1", "baseline.r2"]
    assert names[5:11] == ["baseline.r2", "tf32.r2", "resident.r2", "workers=2.r2", "batch=x4.r2", "baseline.r3"]
    assert len(names) == 16
    assert bench.made[3] == ("workers=2.r1", (), {"workers": 2})
    assert error(found[4]) == pytest.approx(2.0, rel=0.05)
    assert error(found[5]) is None


def test_of_several_mods_the_fastest_is_kept():
    bench = Bench({"loader=1": 1.08, "loader=fast": 3.9, "loader=8": 2.9, "tf32": 1.1})
    input_bound = finding("input_bound", "loader=1")
    input_bound.others = ["loader=fast", "loader=8"]
    other = finding("tf32", "tf32")
    assert prove(bench, [input_bound, other])
    assert (input_bound.mod, input_bound.advice) == ("loader=fast", "paceline run --mod loader=fast …")
    assert input_bound.measured_gain == pytest.approx(3.9, rel=0.03)
    assert (other.mod, other.measured_gain) == ("tf32", pytest.approx(1.1, rel=0.03))


def test_a_first_choice_that_fails_leaves_the_others():
    bench = Bench({"loader=fast": 3.9}, {"loader=1": "too many processes"})
    one = finding("input_bound", "loader=1")
    one.others = ["loader=fast"]
    assert prove(bench, [one])
    assert one.mod == "loader=fast"
    assert one.proof.startswith("measured")


def test_a_mod_is_tried_on_top_of_those_that_the_run_had():
    bench = Bench({"tf32": 1.4, "loader=2": 1.1, "resident": 1.2})
    assert prove(bench, [finding("a", "resident")], mods=("tf32", "loader=2"))
    assert bench.made[1][1] == ("tf32", "resident")  # which excludes the other


def test_a_failure_is_a_result():
    bench = Bench({"tf32": 1.4}, {"batch=x4": "out of memory: tried to allocate 3 GiB"})
    found = [finding("a", "batch=x4"), finding("b", "tf32")]
    assert prove(bench, found)
    assert found[0].measured_gain is None
    assert "out of memory" in found[0].proof
    assert found[1].measured_gain is not None


def test_a_script_that_cannot_be_measured_proves_nothing():
    bench = Bench({}, {"baseline": "the script ended after 3 steps"})
    found = [finding("a", "tf32"), finding("b", "")]
    assert not prove(bench, found)
    assert "ended after 3 steps" in found[0].proof
    assert len(bench.made) == 1


def test_nothing_to_try_is_not_run():
    bench = Bench({})
    assert prove(bench, [finding("a", "")])
    assert not bench.made


def test_a_gain_is_named_only_where_the_rounds_do_not_overlap():
    """One lucky trial is no gain: the first round alone says 1.3×."""
    bench = Bench({"tf32": 1.0, "resident": 1.2}, noise={"tf32": (1.3, 0.97, 1.01)})
    lucky, real = finding("a", "tf32"), finding("b", "resident")
    told: list[str] = []
    assert prove(bench, [lucky, real], tell=told.append)
    assert (lucky.tied, real.tied) == (True, False)
    assert lucky.measured_low < 1 < lucky.measured_high
    assert "no gain was measured" in lucky.proof
    assert real.proof.startswith("measured 1.2")
    assert told == ["tf32: 1.01× (a tie)", "resident: 1.21×"]


def test_a_noisy_machine_proves_nothing():
    """The unmodified script varies as much as the mod gains."""
    bench = Bench({"tf32": 1.1}, noise={"baseline": (1.0, 1.25, 0.9, 1.1)})
    one = finding("a", "tf32")
    assert prove(bench, [one])
    assert one.tied


def test_of_mods_that_are_equally_fast_the_first_is_kept():
    bench = Bench({"loader=4": 2.9, "loader=fast": 3.0, "loader=8": 1.2}, noise={"loader=fast": (1.02, 0.95, 1.03)})
    one = finding("input_bound", "loader=4")
    one.others = ["loader=fast", "loader=8"]
    assert prove(bench, [one])
    assert one.mod == "loader=4"
    assert one.proof.endswith("equally fast: loader=fast")
    # What is clearly slower than another choice is not measured again.
    assert sum(name.startswith("loader=8") for name, _, _ in bench.made) == 1


def test_a_budget_that_ends_leaves_what_was_measured():
    bench = Bench({"tf32": 1.5, "resident": 1.04}, most=3)
    clear, small = finding("a", "tf32"), finding("b", "resident")
    assert prove(bench, [clear, small])
    assert not clear.tied
    assert "by the steps of one round" in clear.proof
    assert small.tied, "one round of 4 % is within the spread of its steps"


def test_trials_of_loaders_are_longer():
    bench = Bench({"loader=4": 2.0, "tf32": 1.2})
    assert prove(bench, [finding("a", "loader=4"), finding("b", "tf32")])
    told = {name: changes.get("enough", 0.0) for name, _, changes in bench.made}
    assert told["loader=4.r1"] > 0
    assert told["tf32.r1"] == told["baseline.r1"] == 0
