"""What `paceline run` makes of what was typed."""

from __future__ import annotations

import json

import msgspec
import pytest
from fake_launch import FakeZygote, one_step
from msgspec import structs

from paceline.errors import LaunchError
from paceline.launch import Notice, Output, Progress, Stall
from paceline.record import Step, read_run
from paceline.record.noise import Noise
from paceline.trials.core.wall_clock import WallClock


def test_options_after_the_script_are_the_scripts(launched, paceline_):
    code, *_ = paceline_("run", "-n", "2", "train.py", "--epochs", "3", "-n", "7", "--json", "--help")
    assert code == 0
    assert launched.runs[0].workers == 2
    assert launched.runs[0].arguments == ("--epochs", "3", "-n", "7", "--json", "--help")


@pytest.mark.parametrize(
    "line",
    [["train.py", "--", "--epochs", "3"], ["--", "train.py", "--epochs", "3"], ["train.py", "--epochs", "3"]],
)
def test_two_dashes_may_stand_before_script_options(launched, paceline_, line):
    paceline_("run", *line)
    assert launched.runs[0].script == "train.py"
    assert launched.runs[0].arguments == ("--epochs", "3")


def test_a_module(launched, paceline_, tmp_path):
    (tmp_path / "package").mkdir()
    paceline_("run", "-n", "2", "-m", "package.train", "--epochs", "3")
    [run] = launched.runs
    assert (run.script, run.module, run.workers, run.arguments) == (
        "package.train",
        True,
        2,
        ("--epochs", "3"),
    )


def test_every_option_arrives(launched, paceline_, tmp_path):
    line = (
        "-n 3 --mod view=slice --batch scale --batch-dim 1 --whole Head --whole model.tail --threads 2 "
        "--steps 9 --backend gloo --seed 5 --stall-warning 7 --stall-abort 8.5 --record elsewhere --quiet "
        "train.py"
    )
    code, out, err = paceline_("run", *line.split())
    [run] = launched.runs
    assert (code, out, err) == (0, "", "")
    assert (run.workers, run.mods, run.batch, run.batch_dim) == (3, ("view=slice",), "scale", 1)
    assert (run.whole, run.threads, run.steps) == (("Head", "model.tail"), 2, 9)
    assert (run.backend, run.seed, run.stall_warning, run.stall_abort) == ("gloo", 5, 7.0, 8.5)
    assert launched.records[0].parent.name == "elsewhere"


def test_a_script_may_be_run_as_torchrun_would(launched, paceline_):
    code, out, err = paceline_("run", "-n", "2", "--as", "torchrun", "--json", "train.py")
    assert code == 0
    assert launched.runs[0].launch_as == "torchrun"
    assert json.loads(out)["as"] == "torchrun"
    assert "as torchrun" in err
    _, out, _ = paceline_("run", "--json", "train.py")
    assert json.loads(out)["as"] is None


def test_an_unknown_launcher_is_refused_with_those_that_there_are(launched, paceline_):
    code, _, err = paceline_("run", "--as", "slurm", "train.py")
    assert code == 2
    assert "--as" in err
    assert "not one of torchrun, " in err
    assert not launched.runs


@pytest.mark.parametrize(
    "option", ["--mod view=slice", "--batch scale", "--noise-scale", "--whole Head", "--mod channels_last"]
)
def test_a_script_that_distributes_itself_is_not_changed(launched, paceline_, option):
    code, _, err = paceline_("run", "-n", "2", "--as", "torchrun", *option.split(), "train.py")
    assert code == 2
    assert f"{option if option.startswith('--mod') else option.split()[0]} and --as torchrun exclude each other" in err
    assert not launched.runs


def test_threads_and_workers_may_be_chosen_as_mods_for_a_script_that_distributes_itself(launched, paceline_):
    code, *_ = paceline_("run", "--as", "torchrun", "--mod", "workers=2", "--mod", "threads=1", "train.py")
    assert code == 0
    assert launched.runs[0].workers == 2


def test_an_option_that_became_the_default_is_explained(launched, paceline_):
    code, _, err = paceline_("run", "-n", "2", "--sync-bn", "train.py")
    assert code == 2
    assert not launched.runs
    assert "batch norm sees the whole batch by default" in " ".join(err.split())


def test_the_noise_scale_is_shown_and_told(launched, paceline_, monkeypatch):
    def measured(run, **how):
        lines = [
            Noise(step=k, small=8, large=16, of_small=3.0 + k % 2, of_large=2.5 + 0.4 * (k % 2)) for k in range(20)
        ]
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        (how["record"] / "noise.rank0.jsonl").write_bytes(text)
        return launched(run, **how)

    monkeypatch.setattr("paceline.cli.run.launch", measured)
    code, out, err = paceline_("run", "-n", "2", "--noise-scale", "--json", "train.py")
    assert (code, launched.runs[0].noise_scale) == (0, True)
    told = json.loads(out)["noise_scale"]
    assert told["low"] < told["batch"] < told["high"]
    assert f"noise scale: {told['batch']:,.0f} samples (95 %:" in err
    monkeypatch.setattr("paceline.cli.run.launch", launched)
    code, out, err = paceline_("run", "--noise-scale", "--json", "train.py")
    assert json.loads(out)["noise_scale"] is None
    assert "noise scale: not measured" in err
    assert "noise_scale" not in json.loads(paceline_("run", "--json", "train.py")[1])


def test_workers_may_be_asked_for_as_a_mod(launched, paceline_):
    paceline_("run", "--mod", "workers=3", "train.py")
    paceline_("run", "-n", "3", "--mod", "workers=3", "train.py")
    assert [run.workers for run in launched.runs] == [3, 3]


@pytest.mark.parametrize("line", ["-n 2 --mod workers=3", "--threads 1 --mod threads=2"])
def test_a_mod_and_an_option_that_say_different_things_are_asked_back(launched, paceline_, line):
    code, _, err = paceline_("run", *line.split(), "train.py")
    assert code == 2
    assert not launched.runs
    assert "contradicts" in err


def test_without_a_number_there_is_a_worker_for_each_gpu(launched, paceline_, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,3")
    paceline_("run", "train.py")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    paceline_("run", "train.py")
    assert [run.workers for run in launched.runs] == [3, 1]


@pytest.mark.parametrize(
    ("line", "message", "advice"),
    [
        ("run -n 0 train.py", "-n 0: a run needs at least one worker", "-n 1"),
        ("run -n 1000000 train.py", "-n 1000000: ", "--oversubscribe"),
        ("run -n two train.py", "-n two: not a whole number", "paceline run --help"),
        ("run trian.py", "The script 'trian.py' cannot be run", "Did you mean train.py?"),
        ("run -m nowhere.train", "-m nowhere.train: there is no module 'nowhere'", "-m package.train"),
        ("run folder", "The script 'folder' cannot be run", "Python file"),
        ("run --wrokers 2 train.py", "--wrokers is not an option", "--workers"),
        ("run --view slice train.py", "--view is not an option", "--mod view=slice"),
        ("run", "paceline run: SCRIPT is missing", "paceline run -n 4 train.py"),
        ("scale -n 1,two train.py", "-n 1,two: not a list of numbers", "-n 1,2,4"),
        ("scale -n 0,1 train.py", "-n 0: a run needs at least one worker", "-n 1"),
        ("rnu train.py", "paceline has no command 'rnu'", "paceline run"),
    ],
)
def test_a_mistake_is_two_lines_and_exit_code_2(launched, paceline_, tmp_path, line, message, advice):
    (tmp_path / "folder").mkdir()
    code, out, err = paceline_(*line.split())
    assert code == 2
    assert out == ""
    assert err.startswith(f"paceline: {message}")
    assert advice in err
    assert "Traceback" not in err
    assert launched.runs == []
    assert all(zygote.closed for zygote in FakeZygote.started)
    assert not (tmp_path / "paceline-runs").exists()


def test_oversubscribe_insists(launched, paceline_):
    code, *_ = paceline_("run", "-n", "300", "--oversubscribe", "--quiet", "train.py")
    assert code == 0
    assert launched.runs[0].workers == 300


def test_a_mistake_as_json(launched, paceline_):
    for line in (["run", "--json", "-n", "0", "train.py"], ["run", "--json", "--wrokers", "2", "train.py"]):
        code, out, _ = paceline_(*line)
        document = json.loads(out)
        assert code == 2
        assert (document["schema"], document["verb"]) == (1, "run")
        assert document["error"]["type"] == "UsageError"
        assert document["error"]["message"]
        assert document["error"]["advice"]


def test_the_scripts_output_is_passed_on_byte_for_byte(launched, capfdbinary):
    from paceline.__main__ import main

    data = b"caf\xe9 \x00\x1b[1m half a li"
    launched.events = [
        Output(0, "stdout", data),
        Output(0, "stdout", b"ne\n"),
        Output(0, "stderr", b"warn\n"),
    ]
    main(["run", "train.py"])
    out, err = capfdbinary.readouterr()
    assert out == data + b"ne\n"
    assert err.startswith(b"warn\n")


def test_json_prints_one_document_and_nothing_else(launched, paceline_):
    launched.events = [Output(0, "stdout", b"epoch 1\n")]
    code, out, err = paceline_("run", "-n", "2", "--json", "train.py")
    document = json.loads(out)
    assert code == 0
    assert "epoch 1" in err
    assert {"schema", "verb", "record", "paceline"} <= document.keys()
    assert (document["workers"], document["hosts"], document["view"], document["strategy"]) == (
        2,
        1,
        "batch",
        "mirrored",
    )
    assert (document["steps"], document["samples"], document["mods"], document["exit_code"]) == (
        12,
        768,
        [],
        0,
    )
    assert document["samples_per_s"] == pytest.approx(640)
    parts = {"total", "data", "forward", "backward", "communication", "optimizer", "other"}
    assert parts <= document["step"].keys()
    assert document["slowest"]["rank"] == 1
    assert document["slowest"]["behind"] == pytest.approx(0.01)
    assert document["loss"] == {"first": 1.0, "last": pytest.approx(1 / 12)}
    assert "error" not in document


def test_the_table_fits_80_columns(launched, paceline_):
    _, out, err = paceline_("run", "-n", "2", "train.py")
    assert out == ""
    assert all(len(line) <= 80 for line in err.splitlines()), err
    for word in (
        "data",
        "forward",
        "backward",
        "communication",
        "optimizer",
        "640 samples/s",
        "record: paceline-runs",
    ):
        assert word in err
    assert "slowest worker: rank 1, 10 ms a step behind the others" in err


def test_notices_and_stalls_are_shown_even_when_quiet(launched, paceline_):
    launched.events = [Notice("2 workers share a core"), Stall("rank 1 is missing\n  at line 3")]
    _, _, err = paceline_("run", "--quiet", "train.py")
    assert err == "paceline: 2 workers share a core\nrank 1 is missing\n  at line 3\n"


def test_progress_without_a_terminal_comes_in_plain_lines(launched, paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.live.PLAIN_EVERY", 0.0)
    launched.events = [
        Progress({0: one_step(1), 1: one_step(1)}),
        Progress({0: one_step(11), 1: one_step(11)}),
    ]
    _, _, err = paceline_("run", "-n", "2", "train.py")
    assert "paceline: step 11 · 640 samples/s · 100 ms a step · loss 0.09091 · spread 0.0 %\n" in err


def test_a_script_that_does_not_train_is_no_mistake(launched, paceline_):
    launched.steps = 0
    code, _, err = paceline_("run", "train.py")
    assert code == 0
    assert "no optimizer step" in err


def test_the_exit_code_is_the_scripts(launched, paceline_):
    launched.outcome.exit_code = 3
    code, out, _ = paceline_("run", "--json", "train.py")
    assert code == 3
    document = json.loads(out)
    assert document["exit_code"] == 3
    assert document["error"]["type"] == "ScriptFailed"


def test_a_failed_worker_is_told_once(launched, paceline_):
    launched.outcome.exit_code = 1
    launched.outcome.message = "rank 1 on here was killed by SIGKILL"
    code, _, err = paceline_("run", "-n", "2", "train.py")
    assert code == 1
    assert err.count("rank 1 on here was killed by SIGKILL") == 1


def test_a_run_that_failed_before_its_first_step_says_so_first_and_nothing_of_its_times(launched, paceline_):
    launched.steps = 0
    launched.outcome.exit_code, launched.outcome.failed_rank = 1, 1
    launched.outcome.cause = "raised ModuleNotFoundError: No module named 'nunpy'"
    code, _, err = paceline_("run", "-n", "2", "train.py")
    assert code == 1
    assert err.lstrip().startswith("failed: worker 1 raised ModuleNotFoundError: No module named 'nunpy'\n")
    assert "ran all of the script" not in err
    assert "where the time went" not in err


def test_a_run_that_failed_early_shows_no_table(launched, paceline_):
    launched.steps = 3
    launched.outcome.exit_code, launched.outcome.failed_rank, launched.outcome.cause = 3, 0, "exited with code 3"
    code, _, err = paceline_("run", "-n", "2", "train.py")
    assert code == 3
    assert "failed: worker 0 exited with code 3\n2 workers · 3 steps" in err
    assert "where the time went" not in err


def test_a_run_that_was_stopped_has_not_failed(launched, paceline_):
    launched.outcome.exit_code, launched.outcome.interrupted = 130, True
    launched.outcome.cause = launched.outcome.message = "Interrupted by SIGINT."
    _, _, err = paceline_("run", "-n", "2", "train.py")
    assert "stopped: interrupted by SIGINT\n" in err
    assert "failed" not in err


def test_an_error_of_ours_that_has_a_name_gets_no_traceback(launched, paceline_):
    launched.raises = LaunchError("torch cannot be imported", advice="paceline doctor")
    code, _, err = paceline_("run", "train.py")
    assert code == 1
    assert err.startswith("failed: torch cannot be imported\n  paceline doctor\nrecord: ")
    assert FakeZygote.started[0].closed


def test_a_bug_of_ours_gets_its_traceback_and_the_records_path(launched, paceline_):
    launched.raises = ZeroDivisionError("oops")
    code, out, err = paceline_("run", "--json", "train.py")
    assert code == 1
    assert "Traceback" in err
    assert "ZeroDivisionError: oops" in err
    assert str(launched.records[0]) in err
    assert json.loads(out)["error"]["type"] == "Bug"


def test_the_zygote_starts_only_where_workers_will(launched, paceline_):
    paceline_("run", "--help")
    paceline_("doctor", "--help")
    paceline_("--version")
    assert FakeZygote.started == []
    paceline_("run", "train.py")
    [zygote] = FakeZygote.started
    assert zygote.closed


def test_tensorboard_gets_a_folder_of_the_records_name(launched, paceline_, tmp_path):
    code, *_ = paceline_("run", "--tensorboard", "board", "train.py")
    assert code == 0
    [events] = (tmp_path / "board").glob("*/events.out.tfevents.*")
    assert events.parent.name == launched.records[0].name
    assert events.read_bytes().count(b"samples_per_second") == launched.steps


def test_a_tensorboard_folder_that_cannot_be_written_is_refused_before_anything_is_made(launched, paceline_, tmp_path):
    code, _, err = paceline_("run", "--tensorboard", "train.py/board", "train.py")
    assert code == 2
    assert "--tensorboard train.py/board cannot be written" in err
    assert launched.runs == []
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("options", "hosts", "workers"),
    [
        ((), ["a:4", "b:4", "c:1"], 9),
        (("-n", "6"), ["a:4", "b:2"], 6),
        (("--elastic", "2:5"), ["a:4", "b:1"], 5),
        (("-n", "5", "--elastic", "2:5"), ["a:4", "b:1"], 5),
        (("-n", "20", "--elastic", "2:20"), ["a:4", "b:4", "c:1"], 9),
    ],
)
def test_n_is_the_number_of_workers_on_found_hosts(launched, paceline_, tmp_path, monkeypatch, options, hosts, workers):
    (tmp_path / "now").write_text("a:4\nb:4\nc\n")
    asked = []

    def launch_on(run, cluster, *, record, **_):
        asked.append((run.workers, [str(host) for host in cluster.hosts()]))
        return launched(run, zygote=None, record=record, on_event=print)

    monkeypatch.setattr("paceline.cli.run.launch_on", launch_on)
    code, _, err = paceline_("run", "--discover", f"cat {tmp_path}/now", *options, "train.py")
    assert code == 0, err
    assert asked == [(workers, hosts)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--as", "horovod", "--elastic", "2"), "goes on from a saved state"),
        (("-n", "10"), "have 9 workers"),
        (("-n", "4", "--elastic", "2:5"), "-n 4 contradicts --elastic"),
        (("--rendezvous", "a:29500", "--nodes", "2"), "--rendezvous and --discover exclude each other"),
    ],
)
def test_a_number_of_workers_that_found_hosts_cannot_have(launched, paceline_, tmp_path, options, said):
    (tmp_path / "now").write_text("a:4\nb:4\nc\n")
    code, _, err = paceline_("run", "--discover", f"cat {tmp_path}/now", *options, "train.py")
    assert code == 2
    assert said in " ".join(err.split())
    assert not (tmp_path / "paceline-runs").exists()


def test_a_run_that_waits_for_input_ends_with_what_to_type(launched, paceline_, monkeypatch):
    def waiting(number: int, *, waits: float = 0.0) -> Step:
        step = one_step(number)
        return structs.replace(step, data=0.08, forward=0.005, backward=0.005)

    monkeypatch.setattr("fake_launch.one_step", waiting)
    code, _, err = paceline_("run", "--seed", "1", "train.py", "--epochs", "3")
    assert code == 0
    assert err.splitlines()[-2:] == [
        "80 % of a step is waiting for input. To load batches ahead, type:",
        "  paceline run --mod loader=fast --seed 1 train.py --epochs 3",
    ]
    _, out, _ = paceline_("run", "-n", "2", "--json", "train.py")
    assert json.loads(out)["advice"]["command"] == "paceline run --mod loader=4 -n 2 --json train.py"


def test_a_run_that_communicates_is_sent_to_scale_with_its_own_options(launched, paceline_, monkeypatch):
    def waiting(number: int, *, waits: float = 0.0) -> Step:
        return structs.replace(one_step(number), communication=0.08, forward=0.005, backward=0.005, data=0.0)

    monkeypatch.setattr("fake_launch.one_step", waiting)
    # --steps of `run` ends the run, --steps of `scale` is the length of a trial.
    line = "run -n 4 --threads 1 --steps 500 --batch keep --mod bn=local train.py --lr 1"
    *_, err = paceline_(*line.split())
    assert err.splitlines()[-2:] == [
        "80 % of a step is communication. To see if fewer workers are as fast, type:",
        "  paceline scale -n 1,2,4 --threads 1 --mod bn=local train.py --lr 1",
    ]


def test_a_run_of_known_length_says_how_much_is_left(launched, paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.live.PLAIN_EVERY", 0.0)
    monkeypatch.setattr("paceline.tables.running.PAUSE", -1)  # computed anew at every step
    launched.events = [Progress({0: one_step(number)}) for number in range(1, 12)]
    *_, err = paceline_("run", "--steps", "51", "train.py")
    assert "left" not in next(line for line in err.splitlines() if "step 1 of 51" in line)
    line = next(line for line in err.splitlines() if "step 11 of 51" in line)
    assert line.endswith("about 4 s left")
    launched.events = [Progress({0: one_step(1)})]
    *_, err = paceline_("run", "train.py")
    assert "left" not in err.splitlines()[0]


def test_a_run_that_computes_needs_no_advice(launched, paceline_):
    _, out, err = paceline_("run", "--json", "train.py")
    assert json.loads(out)["advice"] is None
    assert ", type:\n" not in err


def test_a_run_has_one_duration(launched, paceline_, tmp_path, monkeypatch):
    """10.7 s on the terminal, and 8.88 s in the record."""
    parts = {"start": 6.0, "warm_up": 1.0, "steps": 3.0, "evaluation": 0.0, "check": 0.0, "end": 0.7}
    monkeypatch.setattr("paceline.cli.run.wall_clock_of", lambda *rest: WallClock(total=10.7, **parts))
    _, out, err = paceline_("run", "--json", "train.py")
    assert json.loads(out)["seconds"] == json.loads(out)["wall_clock"]["total"] == 10.7
    assert "10.7 s" in err
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.seconds == 10.7
