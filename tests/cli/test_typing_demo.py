"""What `paceline demo` is told, and what it prints: with a script that takes no time, and no workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_launch import FakeLaunch

from paceline.launch import Output
from paceline.record import Outcome, StepWriter, read_run, read_steps
from paceline.topology import Core, Host
from paceline.trials.demo import plain
from paceline.trials.demo.printed import compare_printed
from paceline.trials.demo.story import Machine, expect

PRINTED = "epoch 1 loss 1.50000 accuracy 0.512\nepoch 2 loss 0.75000 accuracy 0.761\n"


class Faster(FakeLaunch):
    """Prints what plain Python does; resident makes a step twice as fast; other seeds, other losses."""

    def __call__(self, run, *, record: Path, **rest) -> Outcome:
        outcome = super().__call__(run, record=record, **rest)
        for rank in range(run.workers):
            steps = read_steps(record, rank)
            (record / f"steps.rank{rank}.jsonl").unlink()
            writer = StepWriter(record / f"steps.rank{rank}.jsonl")
            for step in steps:
                step.total = 0.05 if "resident" in run.mods else 0.1
                step.data = 0.0 if "resident" in run.mods else 0.05
                step.loss = 2.0 / step.step + 0.02 * run.seed_shift * (step.step % 3)
                writer.append(step)
            writer.close()
        return outcome


@pytest.fixture
def launched(launched, monkeypatch) -> FakeLaunch:
    """On a machine with two cores."""
    fake = Faster()
    fake.steps = 40
    fake.events = [Output(0, "stdout", PRINTED.encode()), Output(0, "stderr", b"a warning 5\n")]
    monkeypatch.setattr("paceline.trials.scale.series.launch", fake)
    monkeypatch.setattr("paceline.trials.core.bench.launch", fake)
    monkeypatch.setattr("paceline.trials.demo.series.run_plain", lambda script, on_line: PRINTED)
    host = Host(name="here", cores=tuple(Core(id=i, node=0, physical=(0, i)) for i in range(2)), quota=None, gpus=())
    monkeypatch.setattr("paceline.cli.demo.discover", lambda: host)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return fake


def test_what_a_person_sees(launched, paceline_, tmp_path):
    code, out, err = paceline_("demo")
    assert code == 0, err
    before, measured = out.split("$ python paceline-demo/train.py")
    assert "already computes on both cores" in " ".join(before.split())
    assert "expect no speed-up" in " ".join(before.split())
    assert "epoch 2 loss 0.75000 accuracy 0.761  epoch 2 loss 0.75000 accuracy 0.761" in measured
    assert "same numbers: yes (6 numbers compared" in measured
    assert "as is: 640 samples/s → tuned: 1,280 samples/s (2.00×" in measured
    assert "keep it: paceline run --preset tuned paceline-demo/train.py" in measured
    told = " ".join(measured.split())
    assert "Workers: no difference between 2 workers and one was measured (0.98–1.02× in 3 rounds)." in told
    assert "Mods: resident made the script 2.00× as fast" in told
    assert "loading data takes 0 ms per step instead of 50 ms" in told
    assert "see it in a browser: paceline view" in measured
    assert read_run(next((tmp_path / "paceline-runs").glob("*scale-train"))).outcome.exit_code == 0
    assert (next((tmp_path / "paceline-runs").glob("*tune-train")) / "preset.json").is_file()


def test_the_commands_that_it_prints_work(launched, paceline_, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.cli.run.launch", launched)
    _, out, _ = paceline_("demo")
    [kept] = [line.removeprefix("keep it: ") for line in out.splitlines() if line.startswith("keep it: ")]
    assert kept.startswith("paceline ")
    code, _, err = paceline_(*kept.split()[1:])
    assert code == 0, err
    assert launched.runs[-1].mods == ("resident",)
    assert (tmp_path / "paceline-demo" / "train.py").is_file()


def test_the_document(launched, paceline_):
    code, out, err = paceline_("demo", "--json", "--quiet")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert {"schema", "verb", "record", "paceline", "seconds", "expectation"} <= document.keys()
    assert (document["verb"], document["workers"], document["script"]) == ("demo", 2, "paceline-demo/train.py")
    assert document["same_numbers"]["same"] is True
    assert [point["workers"] for point in document["points"]] == [1, 2]
    assert document["tune"]["final"]["gain"] == pytest.approx(2.0)
    assert document["tune"]["command"] == "paceline run --preset tuned paceline-demo/train.py"
    assert len(document["conclusion"]) == 2
    assert document["view"] == "paceline view"


def test_other_numbers_are_a_no_with_the_first_difference(launched, paceline_):
    launched.events = [Output(0, "stdout", PRINTED.replace("0.75000", "0.76000").encode())]
    code, out, err = paceline_("demo", "--json", "--budget", "1s")
    assert code == 1
    assert "same numbers: no" in err
    assert "same numbers: yes" not in err
    assert "first difference is in line 2:\n  plain:   epoch 2 loss 0.75000" in err
    assert json.loads(out)["error"]["type"] == "OtherNumbers"


def test_a_short_budget_leaves_the_tune_out_and_says_so(launched, paceline_):
    code, out, err = paceline_("demo", "--json", "--budget", "1s")
    assert code == 0
    assert [run.workers for run in launched.runs] == [1, 2]  # one round
    assert "type: paceline tune paceline-demo/train.py" in err
    assert json.loads(out)["tune"]["final"] is None


def test_records_elsewhere_are_named_in_the_commands(launched, paceline_):
    _, out, _ = paceline_("demo", "--json", "--quiet", "--record", "there", "--folder", "scripts")
    document = json.loads(out)
    assert document["view"] == "paceline view --record there"
    assert document["tune"]["command"] == "paceline run --preset tuned --record there scripts/train.py"


def test_an_interrupt_ends_it_with_a_record(launched, paceline_, tmp_path):
    launched.outcome = Outcome(exit_code=130, seconds=1.0, interrupted=True)
    code, out, err = paceline_("demo", "--json")
    assert code == 130
    assert "paceline: interrupted" in err
    assert "Traceback" not in err
    assert json.loads(out)["error"]["type"] == "Interrupted"
    assert len(launched.runs) == 1
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.interrupted


def test_a_run_that_fails_is_an_error(launched, paceline_):
    launched.outcome = Outcome(exit_code=1, seconds=1.0, message="ValueError: no such data")
    code, out, err = paceline_("demo", "--json")
    assert code == 1
    assert "no such data" in err
    assert "doctor" in json.loads(out)["error"]["advice"]


def test_a_script_that_somebody_changed_is_left_alone(launched, paceline_, tmp_path):
    (tmp_path / "paceline-demo").mkdir()
    (tmp_path / "paceline-demo" / "train.py").write_text("mine\n")
    code, _, err = paceline_("demo")
    assert code == 2
    assert "--folder paceline-demo-2" in err
    assert (tmp_path / "paceline-demo" / "train.py").read_text() == "mine\n"
    assert not (tmp_path / "paceline-runs").exists()


def test_a_mistyped_budget_leaves_nothing(launched, paceline_, tmp_path):
    code, _, err = paceline_("demo", "--budget", "soon")
    assert code == 2
    assert "not a time" in err
    assert not (tmp_path / "paceline-demo").exists()


@pytest.mark.parametrize(
    ("plain_text", "on_workers", "same", "line"),
    [
        ("loss 1.0\n", "loss 1.00001\n", True, None),
        ("loss 1.0\n", "loss 1.001\n", False, 1),
        ("loss 1.0\n", "Loss 1.0\n", False, 1),
        ("loss 1.0\n", "loss 1.0\nloss 0.5\n", False, 2),
        ("loss nan\n", "loss nan\n", True, None),
        ("loss nan\n", "loss 1.0\n", False, 1),
        ("", "", False, None),  # nothing is shown to be the same
    ],
)
def test_printed_numbers_are_compared(plain_text, on_workers, same, line):
    printed = compare_printed(plain_text, on_workers)
    assert (printed.same, printed.first_difference) == (same, line)


@pytest.mark.parametrize(
    ("cores", "gpus", "threads", "workers", "says"),
    [
        (2, 0, None, 2, "expect no speed-up"),
        (64, 0, None, 8, "expect no speed-up"),
        (4, 0, 1, 4, "A plain process computes on 1 core, 4 workers on 4"),
        (1, 0, None, 2, "already computes on its core"),
        (16, 1, None, 2, "already computes on its GPU"),
        (16, 4, None, 4, "A plain process computes on 1 GPU, 4 workers on 4"),
    ],
)
def test_what_to_expect_of_a_machine(cores, gpus, threads, workers, says):
    machine = Machine.of(cores=cores, gpus=gpus, threads=threads)
    assert machine.workers == workers
    assert says in expect(machine)


def test_plain_python_is_really_run_and_its_failure_told(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print(1); print('noise', file=sys.stderr); print(2)")
    heard = []
    assert plain.run_plain(script, on_line=heard.append) == "1\n2\n"
    assert heard == ["1", "2"]
    script.write_text("raise ValueError('no data')")
    with pytest.raises(plain.PacelineError, match="ValueError: no data"):
        plain.run_plain(script)
