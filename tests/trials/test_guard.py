"""The guard over loss series: real ones, of a small network that is trained here, right and wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.trials.tune.loss_guard import Guard


def train(
    seed: int,
    *,
    rate: float = 0.3,
    rounding: float = 1e-7,
    noise: int = 0,
    order: int | None = None,
    batch: int = 32,
    steps: int = 40,
) -> list[float | None]:
    """Losses of a two-layer network under plain SGD. The data is one and the same; `seed` decides the first weights and
    the order of samples, `rounding` how wrong a gradient is, and `noise` draws that."""
    data = np.random.default_rng(7)
    x = data.normal(size=(2000, 12))
    y = (np.tanh(x[:, :6]).sum(1) + 0.5 * data.normal(size=2000) > 0).astype(float)
    random = np.random.default_rng(seed)
    w1, w2 = random.normal(size=(12, 24)) / 3, random.normal(size=24) / 5
    shuffled = np.random.default_rng(seed if order is None else order).permutation(2000)
    error = np.random.default_rng(noise)
    losses: list[float | None] = []
    for step in range(steps):
        picked = np.take(shuffled, range(step * batch, (step + 1) * batch), mode="wrap")
        hidden = np.tanh(x[picked] @ w1)
        logits = hidden @ w2 * (1 + rounding * error.normal())
        p = 1 / (1 + np.exp(-logits))
        losses.append(float(np.mean(np.logaddexp(0, logits) - y[picked] * logits)))
        delta = (p - y[picked]) / batch
        for weights, gradient in (
            (w1, x[picked].T @ (np.outer(delta, w2) * (1 - hidden**2))),
            (w2, hidden.T @ delta),
        ):
            weights -= rate * gradient * (1 + rounding * error.normal(size=gradient.shape))
    return losses


def guard_of(seed: int, **how) -> Guard:
    return Guard([train(seed, noise=1, **how), train(seed, noise=2, **how)], [train(seed + k, **how) for k in (1, 2)])


seeds = st.integers(0, 10**6).map(lambda n: 3 * n)
rates = st.floats(0.1, 0.6)


@given(seed=seeds, rate=rates, rounding=st.sampled_from([0.0, 1e-7, 1e-6]))
def test_rounding_passes(seed, rate, rounding):
    found = guard_of(seed, rate=rate).compare(train(seed, rate=rate, rounding=rounding, noise=3), "rounded")
    assert found.held, found.why
    assert found.steps == 40
    assert found.distance is not None
    assert found.distance < 1e-4


@given(seed=seeds, rate=rates, rounding=st.sampled_from([4e-4, 4e-3]))
def test_a_shorter_mantissa_passes_where_it_is_announced(seed, rate, rounding):
    found = guard_of(seed, rate=rate).compare(train(seed, rate=rate, rounding=rounding, noise=3), "other")
    assert found.held, found.why


@given(seed=seeds, rate=rates, factor=st.sampled_from([0.0, 0.2, 0.5, 2.0, 4.0, -1.0]))
def test_a_wrong_learning_rate_is_refused(seed, rate, factor):
    """Zeroed gradients are a learning rate of zero."""
    guard, wrong = guard_of(seed, rate=rate), train(seed, rate=rate * factor)
    for promise in ("same", "rounded"):
        found = guard.compare(wrong, promise)
        assert not found.held
        assert found.why


@given(seed=seeds, rate=st.floats(0.3, 0.6), factor=st.sampled_from([0.0, 4.0, -1.0]))
def test_no_learning_and_far_too_much_are_refused_also_in_another_precision(seed, rate, factor):
    guard, wrong = guard_of(seed, rate=rate), train(seed, rate=rate * factor, rounding=4e-3)
    assert not guard.compare(wrong, "other").held


@given(seed=seeds, rate=rates)
def test_another_order_of_data_is_refused(seed, rate):
    guard, other = guard_of(seed, rate=rate), train(seed, rate=rate, order=seed + 5)
    assert not guard.compare(other, "same").held
    assert not guard.compare(train(seed, rate=rate, order=seed + 5, rounding=4e-3), "other").held


@given(seed=seeds, at=st.integers(0, 39), loss=st.sampled_from([math.nan, math.inf, None]))
def test_a_loss_that_is_no_number_is_refused_and_its_step_is_named(seed, at, loss):
    losses = train(seed)
    losses[at] = loss
    found = guard_of(seed).compare(losses, "other")
    assert not found.held
    assert f"step {at + 1}" in found.why


@given(seed=seeds)
def test_other_random_numbers_inside_the_model_may_change_the_first_loss(seed):
    """Dropout under compile: the same distribution."""
    losses = train(seed, rounding=3e-3, noise=9)
    assert guard_of(seed).compare(losses, "rounded", draws=True).held


@given(seed=seeds, times=st.sampled_from([2, 4]))
def test_a_larger_batch_may_learn_faster_but_not_worse(seed, times):
    guard = guard_of(seed, rate=0.2)
    right = guard.compare(train(seed, rate=0.2 * times**0.5, batch=32 * times), "mathematics")
    assert right.held, right.why
    wild = guard.compare(train(seed, rate=-0.3, batch=32 * times), "mathematics")
    assert not wild.held
    assert "above" in wild.why


def test_the_spread_of_a_script_that_does_not_repeat_itself_is_the_measure():
    """Of two repeats: a third is outside of it now and then."""
    held = 0
    for seed in range(0, 120, 3):
        guard = Guard([train(seed), train(seed + 10**7)], [train(seed + 1), train(seed + 2)])
        held += guard.compare(train(seed + 2 * 10**7), "same").held
    assert held >= 36


@given(seed=seeds)
def test_a_script_that_does_not_repeat_itself_is_said(seed):
    guard = Guard([train(seed), train(seed + 10**7)], [train(seed + 1), train(seed + 2)])
    standard = guard.standard
    assert standard.parted == 1
    assert standard.parted_by > 1e-4
    assert "is not deterministic" in standard.notes[0]
    assert "at step 1" in standard.notes[0]
    assert not guard.compare(train(seed + 2 * 10**7, rate=-0.5), "same").held


def test_a_script_that_repeats_itself_has_nothing_to_note():
    standard = guard_of(3).standard
    assert standard.parted is None
    assert standard.notes == []
    assert standard.repeated < 1e-5 < standard.seeds


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_baseline_that_is_no_number_from_the_start_is_trouble(loss):
    broken = [loss] * 20
    guard = Guard([broken, broken], [broken])
    assert f"the script's loss is {loss} at step 1" in guard.trouble
    assert guard_of(0).trouble == ""
    later = [2.3, 2.2, *[None] * 20]  # as a record has it
    assert "a number at only 2 of its first 22 steps" in Guard([later, later], [later]).trouble


def test_a_baseline_that_breaks_later_is_compared_up_to_there():
    base = [*train(0)[:20], *[math.nan] * 20]
    guard = Guard([base, base], [train(1), train(2)])
    assert not guard.trouble
    found = guard.compare(train(0), "same")
    assert found.held
    assert found.steps == 20


def test_without_a_loss_only_mods_that_promise_the_same_numbers_pass():
    guard = Guard([[None] * 9, [None] * 9], [[None] * 9])
    assert guard.blind
    assert not guard.trouble
    assert "the script has no loss to compare" in guard.standard.notes[0]
    assert guard.compare([None] * 9, "rounded").held
    assert not guard.compare([None] * 9, "other").held


def test_steps_without_a_loss_are_left_out_on_both_sides():
    """A script whose every second step has no scalar to call backward on."""

    def every_second(losses):
        return [loss if step % 2 else None for step, loss in enumerate(losses)]

    guard = Guard([every_second(train(0)), every_second(train(0))], [every_second(train(1))])
    assert guard.compare(every_second(train(0)), "same").steps == 20
    assert guard.compare(every_second(train(0)), "same").held


def test_a_series_that_is_shorter_is_compared_over_its_own_length():
    found = guard_of(0).compare(train(0)[:12], "same")
    assert (found.held, found.steps) == (True, 12)
    assert not guard_of(0).compare(train(0)[:3], "same").held


def test_a_script_that_no_seed_changes_is_held_to_the_floor():
    base = train(0)
    guard = Guard([base, base], [base, base])
    assert "another seed changes" in guard.standard.notes[0]
    assert guard.compare(base, "other").held
    assert not guard.compare([loss * 1.01 for loss in base], "other").held
