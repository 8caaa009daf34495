"""The first sentence about a run claims what stands out of the scatter of its steps, and nothing else."""

from __future__ import annotations

import random

import pytest

from paceline.advise.verdict import slowed, verdict
from paceline.record import Outcome, Run, Step, WorkerInfo
from paceline.tables.figures import columns_of, figures

SEEDS = range(200)


def run_of(workers: int = 2, *, verb: str = "run", outcome: Outcome | None = None) -> Run:
    return Run(
        paceline="0.1.0",
        verb=verb,
        script="train.py",
        arguments=[],
        settings={"workers": workers},
        workers=[WorkerInfo(rank=rank, host="h", pid=1, cores=[rank], threads=1) for rank in range(workers)],
        outcome=outcome or Outcome(exit_code=0, seconds=9.0),
    )


def step(number: int, times: float = 1.0, **parts: float) -> Step:
    taken = {"data": 0.001, "forward": 0.03, "backward": 0.06, "communication": 0.005, "optimizer": 0.004} | parts
    taken = {name: times * seconds for name, seconds in taken.items()}
    return Step(step=number, at=0.1 * number, samples=64, total=sum(taken.values()), loss=1.0, **taken)


def told(steps: list[Step], run: Run | None = None, findings: list[dict[str, object]] | None = None) -> str:
    first = columns_of(steps)
    return verdict(run or run_of(), figures({0: first}), first, findings or []).sentence


def noisy(seed: int, count: int = 120) -> list[float]:
    """Factors of the step time on a busy machine: scatter, a stall, a drift that comes and goes, a two-fold slow-down
    that ends before the run does."""
    chance = random.Random(seed)
    stall, slow = chance.randrange(count), chance.randrange(10, count // 2)
    return [
        chance.lognormvariate(0, 0.12)
        * (8 if number == stall else 1)
        * (1 + 0.2 * abs((number % 60) / 30 - 1))
        * (2 if slow <= number < slow + 30 else 1)
        for number in range(count)
    ]


def test_the_largest_part_of_a_step_is_named():
    """'12 % of a step is computation', where the script slept for the rest."""
    assert told([step(n, other=0.5) for n in range(1, 40)]) == (
        "2 workers: 83 % of a step is the script's own code outside the model."
    )


def test_the_title_of_a_finding_is_not_said_twice():
    finding = {"title": "20 % of a step is pooling", "command": "paceline run …", "predicted_gain": 1.13}
    few, many = ([step(n) for n in range(1, count)] for count in (9, 60))
    firsts = [columns_of(steps) for steps in (few, many)]
    short, long = (verdict(run_of(), figures({0: first}), first, [finding]) for first in firsts)
    assert (short.sentence, short.about) == ("2 workers: 20 % of a step is pooling.", "predicted 1.13×, not measured")
    assert long.about == "20 % of a step is pooling: predicted 1.13×, not measured"


def test_no_fall_of_the_throughput_is_claimed_from_noise():
    claims = [
        seed
        for seed in SEEDS
        if slowed(columns_of([step(number, times) for number, times in enumerate(noisy(seed), 1)])) is not None
    ]
    assert len(claims) <= 0.05 * len(SEEDS), claims


def test_a_fall_by_half_until_the_end_is_told_with_its_step_and_its_phase():
    found = 0
    for seed in SEEDS:
        chance = random.Random(seed)
        steps = [
            step(number, chance.lognormvariate(0, 0.08), data=0.1 if number > 80 else 0.001) for number in range(1, 121)
        ]
        change = slowed(columns_of(steps))
        found += change is not None and abs(change.after - 80) <= 8 and change.phase == "data"
    assert found >= 0.95 * len(SEEDS)
    sentence = told([step(number, data=0.1 if number > 80 else 0.001) for number in range(1, 121)])
    assert "Throughput fell by half after step 80, from 640 to 322 samples/s" in sentence
    assert "most of it in data" in sentence


def test_a_share_is_a_number_where_blocks_agree_and_a_range_where_they_differ():
    steady = [step(number, communication=0.04) for number in range(1, 61)]
    assert told(steady) == "2 workers: 30 % of a step is communication."
    changing = [step(number, communication=0.02 + 0.002 * number) for number in range(1, 61)]
    assert "% to " in told(changing)
    some = [step(number, communication=0.04 if number > 50 else 0.001) for number in range(1, 61)]
    assert "communication" not in told(some).partition("Throughput")[0], "only a few blocks have it"


def test_a_few_steps_or_parts_that_were_not_timed_give_no_share():
    assert "too few to say where the time goes" in told([step(number) for number in range(1, 8)])
    for each in (whole := [step(number) for number in range(1, 61)]):
        each.split = False
    assert told(whole) == "2 workers: the parts of a step were not timed."


def test_a_failed_run_says_after_which_step_and_why():
    outcome = Outcome(exit_code=1, seconds=3.0, error="ValueError", cause="raised ValueError: no such label")
    assert told([step(1), step(2)], run_of(outcome=outcome)) == "Failed after 2 steps: ValueError: no such label."


@pytest.mark.parametrize(
    ("trial", "typed"),
    [
        ({}, "paceline run --mod a train.py"),
        ({"measured_gain": 1.4}, "paceline run --mod a train.py"),
        ({"measured_gain": 1.02, "tied": True}, "paceline run --mod b train.py"),
        ({"measured_gain": 0.9}, "paceline run --mod b train.py"),
    ],
)
def test_the_next_command_is_that_of_a_finding_that_no_trial_refuted(trial, typed):
    findings = [
        {"title": "A", "command": "paceline run --mod a train.py", "predicted_gain": 1.5, **trial},
        {"title": "B", "command": "paceline run --mod b train.py"},
    ]
    first = columns_of([step(number) for number in range(1, 61)])
    found = verdict(run_of(), figures({0: first}), first, findings)
    assert found.command == typed
    assert ("not measured" in found.about) == (not trial)


def test_without_a_finding_the_next_command_is_the_next_verb():
    first = columns_of([step(number) for number in range(1, 61)])
    typed = [
        verdict(run, figures({0: first}), first, []).command
        for run in (run_of(), run_of(1, verb="profile"), run_of(2, verb="profile"))
    ]
    assert typed == ["paceline profile -n 2 train.py", "paceline scale -n 1,2 train.py", "paceline tune train.py"]
