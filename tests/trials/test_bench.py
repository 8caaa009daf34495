"""Trials on a real zygote: what is measured, what is a failure, what is not run again."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.launch import Zygote
from paceline.record import read_run
from paceline.settings import RunSettings
from paceline.trials.core.bench import Bench, Budget, Interrupted, Journal, Measured, details

TRAIN = """
    import torch
    from torch import nn
    torch.manual_seed(7)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        x = torch.randn(16, 8)
        loss = model(x).square().mean() * {factor}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {more}
"""


@pytest.fixture
def bench(zygote: Zygote, tmp_path: Path) -> Callable[..., Bench]:
    """A bench for a script that is given as text."""

    def bench(text: str, *, budget: float | None = None, **settings) -> Bench:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(text))
        return Bench(
            RunSettings(**{"script": str(script), "steps": 40} | settings),
            zygote=zygote,
            record=tmp_path,
            budget=Budget(budget),
            verb="sweep",
        )

    return bench


def train(*, steps: int = 1000, factor: str = "1.0", more: str = "") -> str:
    return TRAIN.format(steps=steps, factor=factor, more=more)


def test_a_trial_that_ends_well(bench, tmp_path):
    measured = bench(train()).measure("one")
    assert (measured.status, measured.message) == ("ok", "")
    assert 0 < measured.low <= measured.samples_per_s <= measured.high
    assert (measured.batch, measured.steps, len(measured.losses)) == (16, 40, 40)
    assert 50e6 < measured.memory < 2e9, "the whole of a worker with torch in it"
    assert measured.step["total"] > 0
    assert measured.seconds > 0
    assert read_run(Path(measured.record)).verb == "sweep"
    assert Path(measured.record) == tmp_path / "trials" / "one"


# Steps take what they are told to: how long they would take is the machine's affair.
PLAYED = """
    import time
    from paceline.comm import stopwatch
    class Clock:
        now = time.perf_counter()
        def perf_counter(self):
            return self.now
    clock = stopwatch.time = Clock()
"""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_enough_is_when_settled_steps_took_so_long(bench, workers):
    text = PLAYED + train(more="clock.now += 0.2 if step < 3 else 0.01", steps=400)
    measured = bench(text, steps=300, enough=0.3, workers=workers).measure("one")
    assert measured.status == "ok"
    settled = measured.steps - measured.warm_up
    assert (measured.warm_up, measured.steps) == (4, 48), "it is asked after steps 8, 12, 16, 24, 32 and 48"
    assert settled * measured.step["total"] == pytest.approx(0.44)


def test_out_of_memory_is_a_result(bench):
    more = "kept = [torch.empty(4 << 20).fill_(1) for _ in range(step)]"  # 16 MiB more at each step
    measured = bench(train(more=more)).measure("one", memory_limit=150 << 20)
    assert measured.status == "memory"
    assert measured.message.startswith("out of memory")
    assert "\n" not in measured.message
    assert "can't allocate memory" in details(measured)
    assert measured.steps > 3
    assert bench(train(more=more), steps=14).measure("two").ok, "without a limit it fits"


def test_out_of_memory_on_one_worker_ends_the_trial_for_all(bench):
    own = "from paceline.settings import of_this_process as own"
    more = f"{own}; kept = [torch.ones(4 << 20) for _ in range(step * own().rank)]"
    measured = bench(train(more=more), workers=2).measure("one", memory_limit=150 << 20)
    assert measured.status == "memory"
    assert "(worker 1)" in measured.message


def test_a_worker_that_is_killed_ran_out_of_memory(bench):
    measured = bench(train(more="import os; step < 5 or os.kill(os.getpid(), 9)")).measure("one")
    assert measured.status == "memory"


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_script_that_ends_too_soon(bench, steps):
    measured = bench(train(steps=steps)).measure("one")
    assert measured.status == "too short"
    assert ("no optimizer step" if steps == 0 else f"ended after {steps} step") in measured.message


def test_a_loss_that_is_nan_from_the_start(bench):
    measured = bench(train(factor="float('nan')")).measure("one")
    assert measured.status == "not finite"
    assert "NaN" in measured.message


def test_a_script_that_raises(bench):
    measured = bench(train(more="raise ValueError('no such data')")).measure("one")
    assert (measured.status, measured.message) == ("failed", "ValueError: no such data (worker 0)")
    assert "train.py" in details(measured)


def test_a_mod_that_refuses_is_unsupported(bench, tmp_path):
    text = train(more="from paceline.errors import ScriptError; raise ScriptError('not with this model')")
    assert bench(text).measure("plain").status == "failed"
    measured = bench(text).measure("with", mods=("channels_last",))
    assert (measured.status, measured.mods) == ("unsupported", ["channels_last"])


def test_another_seed_gives_other_losses_and_the_same_seed_the_same(bench):
    one = bench(train(), steps=10)
    first, again, other = one.measure("1"), one.measure("2"), one.measure("3", seed_shift=1)
    assert first.losses == again.losses
    assert all(a != b for a, b in zip(first.losses, other.losses, strict=True))


SEEDED = """
    import random
    import numpy as np
    import torch
    random.seed(a=3, version=2)
    np.random.seed(np.int64(3))
    torch.manual_seed(3)
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(9):
        draw = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(()).item()}["%s"]
        (weight.sum() * draw()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("stream", ["python", "numpy", "torch"])
def test_every_stream_that_a_script_seeds_is_shifted(bench, stream):
    one = bench(SEEDED % stream)
    first, other = one.measure("1"), one.measure("2", seed_shift=1)
    assert len(first.losses) == len(other.losses) == 9
    assert first.losses[0] == bench(SEEDED % stream, seed=5).measure("3").losses[0], "its own seed counts"
    assert all(a != b for a, b in zip(first.losses, other.losses, strict=True))


def test_a_series_goes_on_where_it_was(bench, tmp_path):
    first = bench(train()).measure("one")
    torn = (tmp_path / "journal.jsonl").read_bytes()[:50]
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(torn)
    resumed = bench("raise SystemExit(1)")
    assert resumed.measure("one") == first
    assert resumed.measure("two").status == "failed"
    assert list(Journal(tmp_path).trials) == ["one", "two"]


def test_the_budget_is_kept(bench, tmp_path):
    small = bench(train(more="import time; time.sleep(30)"), budget=0.5)
    measured = small.measure("one")
    assert (measured.status, measured.message) == ("budget", "stopped: the budget is over")
    assert 0.5 < small.budget.spent < 29, "the script would have slept longer"
    assert small.budget.over
    assert not small.budget.affords(0.1)
    assert small.measure("two").message == "not run: the budget is over"
    assert not (tmp_path / "trials" / "two").exists()
    assert not Journal(tmp_path).trials


def test_an_endless_budget_is_never_over():
    budget = Budget(None)
    assert budget.affords(1e9)
    assert not budget.over
    assert budget.limit is None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Also where these tests run in the background, where a shell has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_the_journal_as_it_was(bench, tmp_path):
    stopped = bench(train(more="import time; time.sleep(0.05)"), steps=None)
    stopped._on_event = lambda event: os.kill(os.getpid(), signal.SIGINT) if stopped.budget.spent > 0.3 else None
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(Interrupted) as raised:
        stopped.measure("one")
    assert raised.value.exit_code == 130
    assert not Journal(tmp_path).trials


def test_any_name_is_a_folder(bench, tmp_path):
    name = "/".join(["precision=bf16"] * 40)
    measured = bench(train(), steps=20).measure(name)
    assert Path(measured.record).parent == tmp_path / "trials"
    assert Journal(tmp_path).trials[name] == measured


def test_callers_are_told_of_each_trial(bench):
    told: list[object] = []
    one = bench(train(), steps=20)
    one._on_start, one._on_result = told.append, lambda measured: told.append(measured.status)
    assert isinstance(one.measure("a"), Measured)
    one.measure("a")
    assert told == ["a", "ok", "ok"]
