"""What `paceline tune` is told, and what it prints; and `run --preset`, which takes it up."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest
from fake_launch import FakeLaunch

from paceline.launch import Notice, Output
from paceline.record import Outcome, StepWriter, read_run, read_steps, write_run
from paceline.settings import RunSettings
from paceline.topology import discover
from paceline.trials.tune.preset import Preset, whole_path, write_preset

SCRIPT = """\
import torch
from torch import nn
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


class ByMods(FakeLaunch):
    """A script that resident makes twice as fast, and fused_optimizer faster still; bf16 breaks its losses, loader
    takes all memory, and channels_last is not for it. Other seeds, other losses."""

    gains = {"resident": 2.0, "fused_optimizer": 1.25}  # noqa: RUF012

    def alone(self, command: list[str], *, into: Path, steps: int, limit: float | None) -> Outcome:
        """A command in a fresh process."""
        assert command[:2] == ["paceline", "run"]
        mods = tuple(after for before, after in pairwise(command) if before == "--mod")
        settings = RunSettings(script="train.py", mods=mods, steps=steps)
        return self(settings, zygote=None, record=into, on_event=lambda event: None)

    def __call__(self, run, *, record: Path, **rest) -> Outcome:
        ended = self.outcome
        if any(mod.startswith("loader") for mod in run.mods):
            self.outcome = Outcome(exit_code=1, seconds=1.0, failed_rank=0, cause="raised torch.OutOfMemoryError: CUDA")
        if "channels_last" in run.mods:
            self.outcome = Outcome(
                exit_code=1, seconds=1.0, error="ScriptError", cause="raised ScriptError: no pictures"
            )
        outcome = super().__call__(run, record=record, **rest)
        self.outcome = ended
        seconds = 0.1
        for mod, gain in self.gains.items():
            seconds /= gain if mod in run.mods else 1.0
        for rank in range(run.workers):
            steps = read_steps(record, rank)
            (record / f"steps.rank{rank}.jsonl").unlink()
            writer = StepWriter(record / f"steps.rank{rank}.jsonl")
            for step in steps:
                step.total, step.loss = seconds * run.workers, 2.0 / step.step + 0.02 * run.seed_shift * (step.step % 3)
                if "precision=bf16" in run.mods:
                    step.loss += 0.3
                writer.append(step)
            writer.close()
        saved = read_run(record)
        saved.mods, saved.settings = list(run.mods), {"workers": run.workers}
        write_run(record, saved)
        return outcome


@pytest.fixture
def launched(launched: FakeLaunch, monkeypatch, tmp_path) -> FakeLaunch:
    fake = ByMods()
    fake.steps = 40
    monkeypatch.setattr("paceline.trials.core.bench.launch", fake)
    monkeypatch.setattr("paceline.trials.core.bench.run_alone", fake.alone)
    monkeypatch.setattr("paceline.cli.run.launch", fake)
    host = dataclasses.replace(discover(), gpus=())
    monkeypatch.setattr("paceline.cli.tune.discover", lambda: host)
    (tmp_path / "train.py").write_text(SCRIPT)
    return fake


def test_the_table_and_what_to_type(launched, paceline_, tmp_path):
    launched.events = [Output(0, "stdout", b"epoch 1\n"), Notice("said once")]
    code, out, err = paceline_("tune", "--without", "compile", "train.py", "--epochs", "3")
    assert code == 0, err
    assert "epoch 1" not in out + err
    assert err.count("said once") == 1
    assert "kept, or why not" not in err
    assert "paceline: trial 2, at most 300 s left: baseline.r2: 640 samples/s" in err
    told = out[out.index("kept, or why not") :]
    for words in ("2.00×", "out of memory", "unsupported", "refused", "loss diff", "2.50× as fast"):
        assert words in out, words
    assert "to keep it, type: paceline run --preset tuned train.py --epochs 3" in told
    assert "--mod resident --mod fused_optimizer" in told
    assert "+optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)" in told
    assert "By hand: resident" in told
    table = told[: told.index("losses: compared")]
    assert all(len(line) <= 80 for line in table.splitlines())
    [record] = (tmp_path / "paceline-runs").iterdir()
    for name in ("verdict.json", "preset.json", "tuned.patch", "by_hand.json", "journal.jsonl", "plots/tune.svg"):
        assert (record / name).is_file(), name
    assert [one["mod"] for one in json.loads((record / "by_hand.json").read_text())] == ["resident"]
    assert read_run(record).verb == "tune"
    assert read_run(record).outcome.exit_code == 0


def test_the_document(launched, paceline_):
    code, out, _ = paceline_("tune", "--json", "--quiet", "--without", "compile", "train.py")
    document = json.loads(out)
    assert code == 0
    assert {"schema", "verb", "record", "paceline"} <= document.keys()
    assert document["baseline"]["samples_per_s"] == pytest.approx(640)
    rows = {row["mod"]: row for row in document["mods"]}
    assert {"mod", "before", "after", "gain", "loss_difference", "kept", "reason"} <= rows["resident"].keys()
    assert rows["resident"]["kept"]
    assert rows["resident"]["gain"] == pytest.approx(2.0)
    assert not rows["precision=bf16"]["kept"]
    assert rows["precision=bf16"]["loss_difference"] > 0.1
    assert document["final"]["gain"] == pytest.approx(2.5)
    assert document["final"]["samples_per_s"] == pytest.approx(1600)
    assert document["command"] == "paceline run --preset tuned train.py"
    assert "fused=True" in document["patch"]["diff"]
    assert [one["mod"] for one in document["by_hand"]] == ["resident"]


def test_a_preset_has_the_strategy_and_the_compression_too(launched, paceline_, tmp_path):
    folder = tmp_path / "paceline-runs" / "tuned"
    folder.mkdir(parents=True)
    found = {"mods": ["resident"], "workers": 2, "strategy": "zero1", "compression": "bf16"}
    write_preset(folder, Preset(script=whole_path("train.py", module=False), **found))
    code, _, err = paceline_("run", "--preset", "tuned", "train.py")
    assert code == 0, err
    assert "resident zero1 bf16" in err
    ran = launched.runs[-1]
    assert (ran.strategy, ran.compression, ran.workers) == ("zero1", "bf16", 2)
    paceline_("run", "--preset", "tuned", "--strategy", "sharded", "--compression", "fp16", "train.py")
    assert (launched.runs[-1].strategy, launched.runs[-1].compression) == ("sharded", "fp16")


def test_a_preset_is_run_and_said_so(launched, paceline_, tmp_path):
    paceline_("tune", "--quiet", "--without", "compile", "train.py")
    launched.runs.clear()
    code, _, err = paceline_("run", "--preset", "tuned", "train.py")
    assert code == 0
    assert set(launched.runs[0].mods) == {"resident", "fused_optimizer"}
    assert "paceline: preset of paceline-runs/" in err
    assert "resident fused_optimizer" in err
    # What is typed has the last word.
    paceline_("run", "--preset", "tuned", "-n", "2", "--mod", "loader=3", "train.py")
    assert set(launched.runs[1].mods) == {"loader=3", "fused_optimizer"}
    assert launched.runs[1].workers == 2
    (tmp_path / "other.py").touch()
    code, _, err = paceline_("run", "--preset", "tuned", "other.py")
    assert code == 2
    assert "paceline tune other.py" in err
    assert len(launched.runs) == 2


def test_what_was_typed_for_the_trials_is_typed_for_the_run(launched, paceline_):
    _, out, _ = paceline_(
        "tune", "--json", "--threads", "1", "--batch-dim", "1", "--only", "resident", "train.py", "a b"
    )
    document = json.loads(out)
    assert document["command"] == "paceline run --preset tuned --batch-dim 1 --threads 1 train.py 'a b'"
    assert document["spelled_out"] == "paceline run --mod resident --batch-dim 1 --threads 1 train.py 'a b'"


def test_nothing_to_gain(launched, paceline_):
    launched.gains = {}
    code, out, _ = paceline_("tune", "--without", "compile", "train.py")
    assert code == 0
    assert "Nothing to gain" in out
    assert "to keep it, type" not in out
    launched.runs.clear()
    code, _, err = paceline_("run", "--preset", "tuned", "train.py")
    assert code == 0
    assert launched.runs[0].mods == ()
    assert "nothing to gain" in err


def test_only_what_was_asked_is_tried_and_a_start_is_built_upon(launched, paceline_):
    paceline_("tune", "--only", "fused_optimizer", "--mod", "resident", "train.py")
    tried = {mod for run in launched.runs for mod in run.mods}
    assert tried == {"fused_optimizer", "resident"}


def test_a_larger_batch_is_tried_only_where_it_is_allowed(launched, paceline_):
    paceline_("tune", "--only", "fused_optimizer", "train.py")
    assert not any(mod.startswith("batch") for run in launched.runs for mod in run.mods)
    paceline_("tune", "--allow", "batch", "--only", "batch", "train.py")
    assert any(mod == "batch=x2" for run in launched.runs for mod in run.mods)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--allow", "speed"], "only batch and exactness can be allowed"),
        (["--only", "nosuch"], "tune does not try this mod"),
        (["--budget", "soon"], "not a time"),
        (["--mod", "nosuch"], "no mod 'nosuch'"),
    ],
)
def test_a_mistake_is_said_at_once_and_leaves_nothing(launched, paceline_, tmp_path, typed, says):
    code, _, err = paceline_("tune", *typed, "train.py")
    assert code == 2
    assert says in err
    assert not (tmp_path / "paceline-runs").exists()


def test_a_script_that_fails_is_shown_with_its_own_words(launched, paceline_, tmp_path):
    launched.outcome = Outcome(
        exit_code=1, seconds=1.0, cause="raised ValueError: no data", message="ValueError: no data"
    )
    code, out, err = paceline_("tune", "--json", "train.py")
    assert code == 1
    assert "ValueError: no data" in err
    assert json.loads(out)["error"]["type"] == "NothingToTune"
    assert len(launched.runs) == 1
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.exit_code == 1


def test_a_script_without_steps_and_one_that_ends_too_soon(launched, paceline_):
    launched.steps = 0
    code, _, err = paceline_("tune", "train.py")
    assert code == 1
    assert "no optimizer step" in err
    assert "Name the script that trains" in err
    launched.steps = 3
    code, _, err = paceline_("tune", "train.py")
    assert code == 1
    assert "ended after 3 steps" in err
    assert "more epochs" in err


def test_an_interrupt_leaves_a_record_that_can_be_resumed(launched, paceline_, tmp_path):
    calls = launched.__class__.__call__

    def stop_at_sixth(self, run, **rest):
        if len(self.runs) == 6:
            self.outcome = Outcome(exit_code=130, seconds=1.0, interrupted=True)
        return calls(self, run, **rest)

    launched.__class__ = type("Stopping", (ByMods,), {"__call__": stop_at_sixth})
    code, out, err = paceline_("tune", "--without", "compile", "train.py")
    assert code == 130
    assert "interrupted" in out
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.interrupted
    assert json.loads((record / "verdict.json").read_text())["final"] is None
    assert f"--resume {record.relative_to(tmp_path)}" in err
    made = len((record / "journal.jsonl").read_text().splitlines())
    launched.__class__ = ByMods
    launched.outcome = Outcome(exit_code=0, seconds=1.0)
    launched.runs.clear()
    code, out, err = paceline_("tune", "--without", "compile", "--resume", str(record), "train.py")
    assert code == 0, err
    assert "2.50× as fast" in out
    assert made + len(launched.runs) == len((record / "journal.jsonl").read_text().splitlines())
