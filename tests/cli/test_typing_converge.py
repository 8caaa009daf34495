"""What `paceline converge` is told, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import pytest
from fake_launch import FakeLaunch, one_step

from paceline.launch import Output
from paceline.record import Outcome, StepWriter, read_run
from paceline.record.sharpness import RunSharpness, write_sharpness


class Learning(FakeLaunch):
    """Learns as well as its mods let it."""

    accuracy: ClassVar = {
        "": 0.7,
        "lr_scale": 0.5,
        "warmup": 0.6,
        "ghost_bn": 0.5,
        "lars": 0.62,
        "lamb": 0.72,
        "auto": 0.69,
    }
    says = "epoch {epoch} train accuracy 0.99 test accuracy {value:.3f}\n"
    holds = 8  # workers' batches in memory
    diverges = ""

    def __call__(self, run, *, record: Path, on_event, **rest) -> Outcome:
        mods = " ".join(run.mods)
        parts = next((int(m.partition("=")[2]) for m in run.mods if m.startswith("accumulate=")), 1)
        emulated = next((int(m.partition("=")[2]) for m in run.mods if m.startswith("emulate=")), 1)
        value = max((v for name, v in self.accuracy.items() if name and name in mods), default=0.7)
        value = 0.4 if mods.startswith("emulate") and "=" not in mods.partition("=")[2] else value
        self.outcome = Outcome(exit_code=0, seconds=3.0, view="batch")
        self.events = [
            Output(0, "stdout", self.says.format(epoch=epoch, value=value * epoch / 3 + run.seed_shift / 100).encode())
            for epoch in (1, 2, 3)
        ]
        if emulated // parts > self.holds:
            self.events, self.outcome = [], Outcome(exit_code=1, seconds=1.0, cause="raised MemoryError: no")
        elif "ghost_bn" in mods:
            self.events = []
            self.outcome = Outcome(
                exit_code=1, seconds=1.0, error="ScriptError", cause="raised ScriptError: models have no batch norm."
            )
        outcome = super().__call__(run, record=record, on_event=on_event, **rest)
        if self.diverges and self.diverges in mods:
            (record / "steps.rank0.jsonl").unlink()
            writer = StepWriter(record / "steps.rank0.jsonl")
            for number in range(1, self.steps + 1):
                step = one_step(number)
                step.finite = number < 5
                writer.append(step)
            writer.close()
        return outcome


@pytest.fixture
def launched(launched: FakeLaunch, monkeypatch) -> Learning:
    fake = Learning()
    fake.steps = 24
    monkeypatch.setattr("paceline.trials.core.bench.launch", fake)
    return fake


def test_the_table(launched, paceline_, tmp_path):
    code, out, err = paceline_("converge", "--emulate", "8", "--seeds", "2", "train.py", "--epochs", "3")
    assert code == 0
    assert "technique " not in err
    assert "paceline: trial 3 of 16, at most " in err
    table = out[out.index("technique") :]
    for word in ("one worker", "70.5 ± 0.5 %", "naive", "lr_scale + warmup", "72.5 ± 0.5 %", "best", "3 epochs"):
        assert word in table
    assert "ghost_bn: models have no batch norm." in table
    assert "best of 8 workers: lamb, 72.5 %; 2.0 points above one worker" in table
    assert "on real workers: paceline run -n 8 --batch scale --mod optimizer=lamb" in out
    assert "--mod decay=24 train.py --epochs 3\n" in out, "the whole command"
    assert "not measured" in next(line for line in table.splitlines() if "ghost_bn" in line)
    assert all(len(line) <= 80 for line in table.splitlines()[:9])
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert (record / "plots" / "converge.svg").is_file()
    assert read_run(record).verb == "converge"
    mods = [run.mods for run in launched.runs[:8]]
    assert mods[0] == ()
    assert mods[1] == ("emulate=8",)
    assert mods[3] == ("emulate=8", "lr_scale=8", "warmup=4")
    assert mods[7] == ("emulate=8", "large_batch=auto:24")
    assert {run.seed_shift for run in launched.runs} == {0, 1}
    assert len(launched.runs) == 15, "what the script cannot do is not tried again"
    assert all(run.arguments == ("--epochs", "3") and run.steps is None for run in launched.runs)


def test_techniques_whose_seeds_overlap_are_a_tie(launched, paceline_):
    launched.accuracy = launched.accuracy | {"auto": 0.715}
    _, out, err = paceline_("converge", "--seeds", "2", "--json", "train.py")
    told = json.loads(out)
    assert (told["chosen"], told["tied"]) == (None, ["lamb", "auto"])
    assert "lamb, auto overlap over 2 seeds: a tie. The first has the highest mean." in err
    assert "→ More seeds may tell them apart: --seeds 4" in err
    assert "highest mean: lamb, 72.5 %; 2.0 points above one worker" in err


def test_one_seed_shows_no_spread(launched, paceline_):
    _, out, _ = paceline_("converge", "--seeds", "1", "--techniques", "lamb", "train.py")
    assert "One seed does not show how much of a difference is chance.\n→ --seeds 3" in out


def test_the_document(launched, paceline_):
    code, out, _ = paceline_(
        "converge", "--emulate", "4", "--seeds", "1", "--techniques", "lamb,lr_scale=4:sqrt+warmup=9",
        "--target", "0.6", "--json", "train.py",
    )  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert {"schema", "verb", "record", "paceline", "rows", "chosen"} <= document.keys()
    for row in document["rows"]:
        assert {"workers", "technique", "accuracy", "samples_per_s", "diverged"} <= row.keys()
        assert {"mean", "low", "high", "seeds"} == row["accuracy"].keys()
    assert [row["technique"] for row in document["rows"]] == [
        "one worker",
        "naive",
        "lamb",
        "lr_scale=4:sqrt + warmup=9",
    ]
    assert (document["chosen"], document["target"]) == ("lamb", 0.6)
    alone, naive, *_ = document["rows"]
    assert (alone["epochs_to_target"], naive["epochs_to_target"]) == (3, None)
    assert alone["seconds_to_target"] >= 0


def test_sharpness_beside_the_accuracy(launched, paceline_, tmp_path):
    plain = Learning.__call__

    def measuring(self, run, *, record, **rest):
        outcome = plain(self, run, record=record, **rest)
        sharp = "lamb" not in " ".join(run.mods)
        found = RunSharpness(eigenvalue=120.0, settled=sharp, loss=0.25, moved=0.5, radius=0.05, line=[(0.0, 1.0)])
        write_sharpness(record, found if sharp else RunSharpness(trouble="not measured: it is compiled", radius=0.05))
        return outcome

    launched.__class__ = type("Measuring", (Learning,), {"__call__": measuring})
    options = ("--seeds", "2", "--techniques", "lr_scale,lamb", "--sharpness")
    code, out, err = paceline_("converge", *options, "--json", "train.py")
    assert code == 0
    assert "5 % of its norm" in err
    table = err[err.index("technique  ") :]
    assert all(len(line) <= 80 for line in table.splitlines()[:5])
    for word in ("sharpness", "rise", "120", "+0.25", "Sharpness of lamb: not measured: it is"):
        assert word in table
    alone, naive, _, lamb = json.loads(out)["rows"]
    assert (naive["sharpness"]["eigenvalue"], naive["sharpness"]["rise"]) == (120.0, 0.25)
    assert lamb["sharpness"]["eigenvalue"] is None
    asked = [run.sharpness for run in launched.runs]
    assert [one.keep for one in asked] == [True, False, False, False] * 2
    assert [Path(one.line_from).name for one in asked[:4]] == ["", *["oneworker.seed0"] * 3]
    assert [Path(one.line_from).name for one in asked[4:]] == ["", *["oneworker.seed1"] * 3]
    assert alone["sharpness"]["line"] == [[0.0, 1.0]]
    assert (tmp_path / json.loads(out)["line_plot"]).is_file()


def test_nobody_asked_for_sharpness(launched, paceline_):
    _, out, err = paceline_("converge", "--seeds", "1", "--techniques", "lamb", "--json", "train.py")
    assert all(run.sharpness is None for run in launched.runs)
    assert "curvature" not in err
    assert json.loads(out)["line_plot"] is None


def test_a_loss_that_is_no_number_is_a_result(launched, paceline_):
    launched.diverges, launched.says = "lr_scale", "epoch {epoch} test acc {value:.3f}\n"
    code, out, err = paceline_("converge", "--seeds", "1", "--techniques", "lr_scale,lamb", "--json", "train.py")
    assert code == 0
    assert "diverged at step 5" in err
    rows = {row["technique"]: row for row in json.loads(out)["rows"]}
    assert (rows["lr_scale"]["diverged"], rows["naive"]["diverged"]) == (5, None)


def test_a_batch_that_memory_does_not_hold_is_accumulated(launched, paceline_):
    launched.holds = 2
    code, out, _ = paceline_("converge", "--seeds", "1", "--techniques", "lamb", "--json", "train.py")
    assert code == 0
    asked = [run.mods[-1] for run in launched.runs[1:4]]
    assert asked == ["emulate=8", "accumulate=2", "accumulate=4"]
    assert json.loads(out)["rows"][2]["mods"][-1] == "accumulate=4", "found once"
    assert len(launched.runs) == 5


@pytest.mark.parametrize("typed", [(), ("--metric", "f1 ([0-9.]+)")])
def test_no_accuracy_is_told_after_the_first_run(launched, paceline_, typed):
    launched.says = "epoch {epoch} loss {value:.3f}\n"
    plain = Learning.__call__

    def keeping_a_log(self, run, *, record, **rest):
        outcome = plain(self, run, record=record, **rest)
        (record / "log.rank0.txt").write_bytes(b"".join(event.data for event in self.events))
        return outcome

    launched.__class__ = type("Keeping", (Learning,), {"__call__": keeping_a_log})
    code, out, err = paceline_("converge", *typed, "--json", "train.py")
    assert code == 2
    assert "epoch 3 loss 0.700" in err
    assert "--metric" in json.loads(out)["error"]["advice"]
    assert len(launched.runs) == 1


def test_a_script_that_fails_as_it_is(launched, paceline_, monkeypatch):
    plain = FakeLaunch()
    plain.outcome = Outcome(exit_code=1, seconds=1.0, cause="raised ValueError: x", message="Worker 0: line 1")
    monkeypatch.setattr("paceline.trials.core.bench.launch", plain)
    code, _, err = paceline_("converge", "train.py")
    assert code == 1
    assert "Worker 0: line 1\nfailed: train.py on one worker, without any technique: ValueError: x\n" in err
    assert "Traceback" not in err
    assert len(plain.runs) == 1


def test_an_interrupted_series_is_resumed(launched, paceline_, tmp_path):
    plain = Learning.__call__

    def stop(self, run, *, record, **rest):
        outcome = plain(self, run, record=record, **rest)
        if len(self.runs) == 3:
            outcome.interrupted, outcome.exit_code = True, 130
        return outcome

    launched.__class__ = type("Stopped", (Learning,), {"__call__": stop})
    options = ("converge", "--seeds", "1", "--techniques", "lamb,lars")
    code, out, _ = paceline_(*options, "--json", "train.py")
    assert code == 130
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert f"--resume {record.relative_to(tmp_path)}" in json.loads(out)["error"]["advice"]
    launched.__class__ = Learning
    code, out, _ = paceline_(*options, "--resume", str(record), "--json", "train.py")
    assert code == 0
    assert [row["accuracy"]["seeds"] for row in json.loads(out)["rows"]] == [1] * 4
    assert len(launched.runs) == 5, "those that had ended are not run again"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("--metric", "acc ("), "not a regular expression"),
        (("--techniques", "magic"), "--techniques magic"),
        (("--techniques", "ghost_bn=0"), "--techniques ghost_bn=0"),
        (("--emulate", "8", "--workers", "3"), "a divisor of 8"),
        (("--mod", "batch=x2"), "Use --emulate"),
        (("--budget", "soon"), "--budget 90s"),
    ],
)
def test_a_mistake_leaves_nothing_behind(launched, paceline_, tmp_path, typed, says):
    code, _, err = paceline_("converge", *typed, "train.py")
    assert code == 2
    assert says in err
    assert not (tmp_path / "paceline-runs").exists()
