"""A few steps are traced, of a script that knows nothing of it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from typist import Typist

from paceline.record.phases import CHECK
from paceline.record.samples import read_samples
from paceline.tables.records import read_record
from paceline.tables.trace.steps import breakdown, windows
from paceline.tables.waits import waits

Profile = Callable[..., tuple[subprocess.CompletedProcess[str], Path]]
SCRIPT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64 * {steps}, 8), torch.randint(2, (64 * {steps},)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(DataLoader(data, batch_size=64), 1):
    time.sleep(0.005)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = loss.item()  # line 16
print("made", step, "loss", last)
"""


@pytest.fixture
def profile(typist: Typist, tmp_path: Path) -> Profile:
    """`profile(option, …, steps=60)`: what was said of a script that makes so many steps, and the record."""

    def profile(*options: str, steps: int = 60, last: str = "last =") -> tuple[subprocess.CompletedProcess[str], Path]:
        (tmp_path / "train.py").write_text(SCRIPT.format(steps=steps).replace("last =", last))
        done = typist.type(tmp_path, "profile", *options, "train.py")
        return done, next(iter((tmp_path / "paceline-runs").iterdir()))

    return profile


def test_two_workers_trace_the_same_steps_after_the_warm_up(profile: Profile, tmp_path: Path) -> None:
    done, record = profile("-n", "2", "--steps", "3", "--tensorboard", "board")
    assert done.returncode == 0, done.stderr
    assert "made" not in done.stdout + done.stderr  # stopped after the trace
    assert "are traced. The script is stopped here; to run it to its end, add: --to-the-end" in done.stderr
    assert "backward" in done.stdout
    assert "backward" not in done.stderr
    assert "USDT" not in done.stderr
    assert "Memory block of unknown size" not in done.stderr
    tables = read_record(record)
    assert [trace.rank for trace in tables.traces] == [0, 1]
    steps = [windows(trace)["step"].to_list() for trace in tables.traces]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 3
    assert steps[0][0] >= 6
    assert tables.steps.filter(rank=0)["step"].max() == steps[0][-1]
    # Nothing is left of the writing.
    assert {path.name for path in record.glob("*trace*")} == {"trace.rank0.json.gz", "trace.rank1.json.gz"}

    phases = tables.over_ranks(breakdown)
    parts = phases.select(pl.sum_horizontal("data", "forward", "backward", "communication", "optimizer", "other"))
    assert parts.to_series().to_list() == pytest.approx(phases["wall"].to_list(), rel=1e-6)
    for part in ("data", "forward", "backward", "communication", "optimizer"):
        assert (phases[part] > 0).all(), part
    assert (phases["other"] > 0.005).all()  # the sleep

    # As long as the step record says: of two clocks that are read one after the other, and a busy machine may take the
    # processor away in between, now and then.
    recorded = tables.steps.join(phases, on=["rank", "step"], suffix="_traced")
    assert recorded.height == 6
    apart = (recorded["wall"] - recorded["total"]).abs() / recorded["total"]
    assert apart.min() < 0.05, apart.to_list()

    [line] = waits(tables.traces[0]).filter(what="item").iter_rows(named=True)
    assert (Path(line["file"]).name, line["line"], line["calls"]) == ("train.py", 16, 1.0)
    assert {sample.rank for one in read_samples(record) for sample in one.workers} <= {0, 1}
    [events] = (tmp_path / "board" / record.name).iterdir()
    assert events.read_bytes().count(b"samples_per_second") == steps[0][-1]


@pytest.mark.slow
def test_the_script_goes_on_when_asked_and_ends_well_in_mid_trace(profile: Profile) -> None:
    done, record = profile("-n", "1", "--steps", "40", "--warm-up", "10", "--to-the-end", "--stack", steps=16)
    assert done.returncode == 0, done.stderr
    assert "made 16" in done.stderr, "standard output has the results"
    assert "made 16" not in done.stdout
    assert "stopped here" not in done.stderr
    [trace] = read_record(record).traces
    assert windows(trace)["step"].to_list() == [11, 12, 13, 14, 15, 16]
    assert trace.has_stack


def test_a_script_that_ends_too_soon_is_told_so(profile: Profile) -> None:
    done, record = profile("-n", "1", steps=3)
    assert done.returncode == 2
    assert "ended after 3 steps" in done.stderr
    assert "--warm-up" in done.stderr
    assert not list(record.glob("trace*"))


def test_a_script_that_fails_while_it_is_traced_says_so_and_keeps_the_trace(profile: Profile) -> None:
    done, _ = profile("-n", "1", "--warm-up", "4", "--json", "--steps", "9", steps=20, last="assert step < 9; last =")
    told = json.loads(done.stdout)
    assert done.returncode == told["exit_code"] == 1
    assert told["error"]["type"] == "ScriptFailed"
    assert (told["first"], told["last"]) == (5, 9)


SLEEPS = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 16 * 60

    def __getitem__(self, n):
        time.sleep(0.002)
        return torch.full((8,), float(n)), n % 2

torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x, y in DataLoader(Slow(), batch_size=16):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loader_that_sleeps_is_told_from_one_that_computes(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPS)
    done = typist.type(tmp_path, "profile", "-n", "1", "--steps", "2", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    [found] = [one for one in json.loads(done.stdout)["findings"] if one["rule"] == "input_bound"]
    shares = [each["value"] for each in found["evidence"] if each["name"] == "share of loading that computes"]
    assert shares[0] < 0.5
    assert "more processes than cores" in found["advice"]
    assert "loader=fast" in found["others"]


def test_what_paceline_does_for_itself_is_in_no_step_and_no_count(profile: Profile) -> None:
    """The first calls are compared with the proof, workers compare what they hold, and after ten steps the size of the
    buckets is chosen: all of it is in the traced steps, and none of it is counted."""
    done, record = profile("-n", "2", "--warm-up", "2", "--steps", "9", last="last_loss =")
    assert done.returncode == 0, done.stderr
    tables = read_record(record)
    for trace in tables.traces:
        checks = trace.events.filter(pl.col("name").cast(pl.String) == CHECK)
        assert checks.height > 1, "nothing was to be left out"
        made = {}
        for step, start, end in windows(trace).rows():
            within = trace.counted.filter((pl.col("start") >= start) & (pl.col("start") < end))
            made[step] = Counter(within.filter(pl.col("kind") == "op")["name"].cast(pl.String).to_list())
        assert list(made) == list(range(3, 12))
        assert {step: made[step] - made[4] for step in made if made[step] - made[4]} == {}
    recorded = tables.steps.filter(pl.col("step").is_in(list(made)))
    assert (recorded["check"] > 0).sum() >= 4, "at least two steps of each rank"
