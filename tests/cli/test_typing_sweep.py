"""What `paceline sweep` is told, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_launch import FakeLaunch

from paceline.errors import UsageError
from paceline.launch import Notice, Output
from paceline.options import read_size, read_time
from paceline.record import Outcome, Step, StepWriter, read_run, read_steps

OWN, FITS = 64, 512


class BySize(FakeLaunch):
    """Trains on the batch that the mod asks for: 10 ms a step and 10 µs a sample, until it no longer fits."""

    disturbed = 1.0
    overhead = 0.01

    def __call__(self, run, *, record: Path, **rest) -> Outcome:
        self.outcome = Outcome(exit_code=0, seconds=3.0, view="batch")
        value = next(mod for mod in run.mods if mod.startswith("batch=")).removeprefix("batch=").removesuffix(":none")
        batch = round(OWN * float(value[1:])) if value.startswith("x") else int(value)
        if batch > FITS:
            self.outcome = Outcome(exit_code=1, seconds=1.0, failed_rank=1, cause="raised torch.OutOfMemoryError: CUDA")
        outcome = super().__call__(run, record=record, **rest)
        for rank in range(run.workers):
            steps = read_steps(record, rank)
            (record / f"steps.rank{rank}.jsonl").unlink()
            writer = StepWriter(record / f"steps.rank{rank}.jsonl")
            for step in steps:
                seconds = (self.overhead + 1e-5 * batch) * (self.disturbed if step.step % 24 < 12 else 1)
                writer.append(sized(step, batch, seconds))
            writer.close()
        return outcome


def sized(step: Step, batch: int, seconds: float) -> Step:
    step.samples, step.total, step.memory = batch, seconds, 1000 * batch
    return step


@pytest.fixture
def launched(launched: FakeLaunch, monkeypatch) -> FakeLaunch:
    fake = BySize()
    monkeypatch.setattr("paceline.trials.core.bench.launch", fake)
    return fake


def test_the_table(launched, paceline_, tmp_path):
    launched.events = [Output(0, "stdout", b"epoch 1\n"), Notice("said once"), Notice("batch 64 → 128", mod="batch")]
    code, out, err = paceline_("sweep", "-n", "2", "--repeat", "1", "train.py")
    assert code == 0
    assert "epoch 1" not in out + err
    assert "batch 64 →" not in err
    assert err.count("said once") == 1
    assert "low–high" not in err
    table = out[out.index("low–high") :]
    for word in ("own", "knee", "best", "out of memory", "KiB", "--mod batch=x", "512 fits, 576 does not"):
        assert word in table
    assert all(len(line) <= 80 for line in table.splitlines()[:14])
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert (record / "plots" / "sweep.svg").is_file()
    assert json.loads((record / "verdict.json").read_text())["ceiling"] == "memory"
    run = read_run(record)
    assert (run.verb, run.outcome and run.outcome.exit_code) == ("sweep", 0)
    assert {r.workers for r in launched.runs} == {2}
    assert {r.verb for r in map(read_run, launched.records)} == {"sweep"}


def test_a_machine_that_is_disturbed(launched, paceline_):
    launched.steps = 60
    _, out, _ = paceline_("sweep", "--repeat", "1", "train.py")
    assert "busy" not in out
    launched.disturbed = 2.0
    _, out, _ = paceline_("sweep", "--repeat", "1", "train.py")
    assert "other processes keep this machine busy" in out


def test_the_document(launched, paceline_):
    code, out, _ = paceline_("sweep", "--from", "32", "--to", "128", "--repeat", "2", "--json", "train.py")
    document = json.loads(out)
    assert code == 0
    assert {"schema", "verb", "record", "paceline", "points", "knee", "best"} <= document.keys()
    assert {"batch", "samples_per_s", "low", "high", "memory", "fits"} <= document["points"][0].keys()
    batches = [point["batch"] for point in document["points"]]
    assert (batches[0], batches[-1]) == (32, 128)
    assert (document["knee"], document["best"], document["ceiling"]) == (128, 128, "to")
    assert document["points"][-1]["rounds"] == 2
    assert launched.runs[0].mods == ("batch=32:none",)


def test_the_end_is_asked_for(launched, paceline_):
    launched.overhead = 0.0  # no batch is faster than another
    _, out, _ = paceline_("sweep", "--repeat", "1", "train.py")
    assert "--to-the-end" in out
    assert "out of memory" not in out
    code, out, err = paceline_("sweep", "--repeat", "1", "--to-the-end", "--json", "train.py")
    assert code == 0
    assert "out of memory" in err
    document = json.loads(out)
    assert (document["knee"], document["largest"], document["ceiling"]) == (None, FITS, "memory")
    assert document["tied"][:2] == [64, 128]
    assert "no knee: 64 to 512 samples a step are equally fast" in err
    assert document["points"][-1]["status"] == "memory"


def test_what_a_trial_is_told(launched, paceline_):
    paceline_("sweep", "--memory-limit", "2GB", "--steps", "50", "--mod", "channels_last", "train.py", "--lr", "1")
    run = launched.runs[0]
    assert (run.memory_limit, run.steps, run.arguments) == (2 << 30, 50, ("--lr", "1"))
    assert run.mods == ("channels_last", "batch=x1:none")
    assert run.enough > 0


def test_an_interrupted_sweep_is_resumed(launched, paceline_, tmp_path):
    launched.raises = None
    plain = BySize.__call__

    def stop(self, run, *, record, **rest):
        outcome = plain(self, run, record=record, **rest)
        if len(self.runs) == 3:
            outcome.interrupted, outcome.exit_code = True, 130
        return outcome

    launched.__class__ = type("Stopped", (BySize,), {"__call__": stop})
    code, out, err = paceline_("sweep", "--json", "train.py")
    assert code == 130
    assert "interrupted" in err
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert f"--resume {record.relative_to(tmp_path)}" in json.loads(out)["error"]["advice"]
    assert read_run(record).outcome.interrupted  # type: ignore[union-attr]
    seed = launched.runs[0].seed
    launched.__class__ = BySize
    code, _, err = paceline_("sweep", "--resume", str(record), "train.py")
    assert code == 0
    values = [run.mods[-1] for run in launched.runs]
    assert values[:5] == [f"batch={x}:none" for x in ("x1", "x2", "x4", "x4", "x8")]
    assert {run.seed for run in launched.runs} == {seed}


def test_resuming_something_else(launched, paceline_, tmp_path):
    paceline_("sweep", "--repeat", "1", "train.py")
    [record] = (tmp_path / "paceline-runs").iterdir()
    code, _, err = paceline_("sweep", "--resume", str(record), "-n", "2", "train.py")
    assert code == 2
    assert "started with other values of workers" in err
    code, _, err = paceline_("sweep", "--resume", "nowhere", "train.py")
    assert code == 1
    assert "no record at nowhere" in err


@pytest.mark.parametrize(
    ("steps", "outcome", "says"),
    [
        (0, Outcome(exit_code=0, seconds=1.0), "no optimizer step"),
        (3, Outcome(exit_code=0, seconds=1.0), "ended after 3 steps"),
        (
            9,
            Outcome(exit_code=1, seconds=1.0, error="ScriptError", cause="raised ScriptError: no DataLoader"),
            "cannot be changed: no Data",
        ),
        (9, Outcome(exit_code=1, seconds=1.0, cause="raised ValueError: x", message="Worker 0: line 1"), "0: line 1"),
        (9, Outcome(exit_code=1, seconds=1.0, cause="was killed by SIGKILL (signal 9)"), "--from 8"),
    ],
)
def test_a_script_that_cannot_be_swept(launched, paceline_, monkeypatch, steps, outcome, says):
    plain = FakeLaunch()
    plain.steps, plain.outcome = steps, outcome
    monkeypatch.setattr("paceline.trials.core.bench.launch", plain)
    code, out, err = paceline_("sweep", "--json", "train.py")
    assert code == 1
    assert says in err
    assert "Traceback" not in err
    error = json.loads(out)["error"]
    assert error["message"]
    assert error["advice"]
    assert len(plain.runs) == 1


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--from", "64", "--to", "8"), "--from 8 --to 64"),
        (("--mod", "batch=128"), "--from and --to"),
        (("--budget", "soon"), "--budget 90s"),
        (("--memory-limit", "much"), "--memory-limit 2GB"),
    ],
)
def test_a_mistake_leaves_nothing_behind(launched, paceline_, tmp_path, typed, says):
    code, _, err = paceline_("sweep", *typed, "train.py")
    assert code == 2
    assert says in err
    assert not (tmp_path / "paceline-runs").exists()


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1.5m", 90)])
def test_times(text, seconds):
    assert read_time(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "5 apples", "m", "0s", "-5m", "5m!"])
def test_no_times(text):
    with pytest.raises(UsageError):
        read_time(text, "--budget")


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 << 30), ("512MiB", 512 << 20), ("1.5g", 3 << 29), ("100", 100)])
def test_sizes(text, size):
    assert read_size(text, "--memory-limit") == size
