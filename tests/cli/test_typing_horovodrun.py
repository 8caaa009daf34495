"""`horovodrun`: Horovod's flags become options of `paceline run` and variables of the workers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline import __version__
from paceline.cli.horovodrun.flags import FLAGS, read
from paceline.cli.horovodrun.main import main, run_arguments
from paceline.errors import UsageError
from paceline.settings import LAUNCHER_VARIABLES, horovod_environment


@pytest.fixture
def horovodrun(capfdbinary):
    """Types a command line; returns (exit code, standard output, standard error)."""

    def type_it(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capfdbinary.readouterr()
        return code, out.decode(), err.decode()

    return type_it


def mapped(typed: str) -> str:
    return " ".join(run_arguments(read(typed.split())))


AS_HOROVOD = "run --as horovod --oversubscribe"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("-np 2 python train.py --lr 1", "-n 2 train.py --lr 1"),
        ("--num-proc=2 python3 -u train.py -np 3", "-n 2 train.py -np 3"),
        ("-np 2 python3.12 -m package.train x", "-n 2 -m package.train x"),
        ("-np 2 -- ./train.py", "-n 2 ./train.py"),
        ("-np 3 --min-np 1 python train.py", "-n 3 --elastic 1 train.py"),
        ("-np 3 --min-np 1 --max-np 4 python train.py", "-n 4 --elastic 1:4 train.py"),
        (
            "--host-discovery-script ./hosts.sh --min-np 2 --max-np 8 -p 22 python train.py",
            "--discover ./hosts.sh --ssh ssh -p 22 --elastic 2:8 --save-every 1 train.py",
        ),
        (f"-np 2 {sys.executable} train.py", "-n 2 train.py"),
        ("-np 2 --gloo --verbose --disable-cache --start-timeout 60 python train.py", "-n 2 train.py"),
        ("-np 2 -H localhost:2 -p 22 --network-interface lo python train.py", "-n 2 train.py"),
        ("-np 3 -H a:2,b:2 python train.py", "--hosts a:2,b:1 train.py"),
        ("-np 2 -H a:2,b:2 python train.py", "--hosts a:2 train.py"),
        ("-H a:2,b:2 python train.py", "--hosts a:2,b:2 train.py"),
        (
            "-np 2 -H a,b -p 2222 -i key --network-interfaces eth1 python train.py",
            "--hosts a:1,b:1 --interface eth1 --ssh ssh -p 2222 -i key train.py",
        ),
        ("-np 2 --fusion-threshold-mb 32 python t.py", "-n 2 --env HOROVOD_FUSION_THRESHOLD=33554432 t.py"),
        ("-np 2 --cycle-time-ms 3.5 python t.py", "-n 2 --env HOROVOD_CYCLE_TIME=3.5 t.py"),
        ("-np 2 --no-autotune python t.py", "-n 2 --env HOROVOD_AUTOTUNE=0 t.py"),
        (
            "-np 2 --timeline-filename t.json --timeline-mark-cycles python t.py",
            "-n 2 --env HOROVOD_TIMELINE=t.json --env HOROVOD_TIMELINE_MARK_CYCLES=1 t.py",
        ),
        ("-np 2 --no-stall-check python t.py", "-n 2 --env HOROVOD_STALL_CHECK_DISABLE=1 t.py"),
        ("-np 2 --log-level debug python t.py", "-n 2 --env HOROVOD_LOG_LEVEL=DEBUG t.py"),
    ],
)
def test_flags_are_mapped(typed: str, expected: str) -> None:
    assert mapped(typed) == f"{AS_HOROVOD} {expected}"


def test_without_hosts_a_run_stays_on_this_host_inside_a_schedulers_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a,b")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert mapped("-np 2 python t.py") == f"{AS_HOROVOD} -n 2 --on local t.py"
    assert mapped("-H a,b python t.py") == f"{AS_HOROVOD} --hosts a:1,b:1 t.py"


def test_slots_of_a_host_file_are_filled_in_order(tmp_path: Path) -> None:
    (file := tmp_path / "hosts").write_text("a slots=2\nb slots=2\n# c slots=2\n")
    assert mapped(f"-np 3 -hostfile {file} python t.py") == f"{AS_HOROVOD} --hosts a:2,b:1 t.py"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("-np 2 --fusion-treshold-mb 3 python t.py", "Did you mean --fusion-threshold-mb?"),
        ("-np 2 --shiny python t.py", "--shiny: there is no such flag"),
        ("-np two python t.py", "'two' is not a value"),
        ("-np 0 python t.py", "'0' is not a value"),
        ("-np 2 --log-level loud python t.py", "'loud' is not a value"),
        ("-np 2 --autotune=yes python t.py", "takes no value"),
        ("-np", "-np needs a value"),
        ("python t.py", "the number of processes is missing"),
        ("-np 2", "the command is missing"),
        ("-np 2 python", "python needs a script"),
        ("-np 2 python -c pass", "python -c: the workers cannot be given"),
        ("-np 2 bash train.sh", "'bash' is not Python"),
        ("-np 2 /nowhere/python t.py", "another Python"),
        ("-np 2 --min-np 0 python t.py", "'0' is not a value of this flag"),
        ("-np 2 --host-discovery-script ./hosts.sh python t.py", "is for elastic runs"),
        ("-np 2 -H a,b --min-np 1 python t.py", "need a largest number of processes"),
        ("-np 2 --reset-limit 3 python t.py", "elastic runs have no such flag here"),
        ("-np 9 -H a:2,b:2 python t.py", "the hosts have 4 slots in all"),
        ("-np 2 -H a:2 --hostfile h python t.py", "exclude each other"),
        ("-np 2 -H a:1,b:1 --network-interfaces x,y python t.py", "Paceline uses one interface"),
        ("-np 2 --config-file nowhere.yaml python t.py", "nowhere.yaml cannot be read"),
    ],
)
def test_mistakes_are_refused_with_a_hint(horovodrun, launched, typed: str, said: str) -> None:
    code, out, err = horovodrun(*typed.split())
    assert (code, out) == (2, "")
    assert said in err
    assert not launched.runs


def test_the_run_is_one_of_paceline(horovodrun, launched) -> None:
    code, _, err = horovodrun("-np", "2", "--cache-capacity", "7", "--verbose", "python", "train.py", "--lr", "1")
    assert code == 0
    [run] = launched.runs
    assert (run.workers, run.launch_as, run.script, run.arguments) == (2, "horovod", "train.py", ("--lr", "1"))
    assert run.environment == ("HOROVOD_CACHE_CAPACITY=7",)
    assert (
        "paceline-horovodrun: paceline run --as horovod --oversubscribe -n 2 --env HOROVOD_CACHE_CAPACITY=7 train.py"
        in err
    )


def test_a_config_file_has_horovods_sections_and_typed_flags_count_more(tmp_path: Path) -> None:
    (file := tmp_path / "run.yaml").write_text(
        "controller: gloo\n"
        "params:\n  fusion_threshold_mb: 2\n  cycle_time_ms: 7\n"
        "autotune:\n  enabled: true\n  log_file: a.csv\n"
        "stall_check:\n  enabled: false\n"
        "timeline:\n  filename: t.json\n  mark_cycles: false\n"
    )
    asked = read(["-np", "2", "--cycle-time-ms", "3", "--config-file", str(file), "python", "t.py"])
    run_arguments(asked)
    assert asked.variables == {
        "HOROVOD_FUSION_THRESHOLD": str(2 << 20),
        "HOROVOD_CYCLE_TIME": "3.0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "a.csv",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "0",
    }
    file.write_text("params:\n  fusion: 2\n")
    with pytest.raises(UsageError, match="fusion is not a value"):
        mapped(f"-np 2 --config-file {file} python t.py")


def test_the_output_of_each_process_goes_to_a_file(horovodrun, launched, tmp_path: Path) -> None:
    def fake(run, *, record, **rest):
        outcome = launched(run, record=record, **rest)
        for rank in range(2):
            (record / f"log.rank{rank}.txt").write_text(f"rank {rank}\n")
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.cli.run.launch", fake)
        code, *_ = horovodrun("-np", "2", "--output-filename", "out", "python", "train.py")
    assert code == 0
    assert [(tmp_path / f"out/rank.{rank}/stdout").read_text() for rank in range(2)] == ["rank 0\n", "rank 1\n"]


def test_help_names_every_flag_and_version_and_build_are_told(horovodrun) -> None:
    code, out, _ = horovodrun("--help")
    assert code == 0
    assert out.startswith("paceline-horovodrun -np 4 python train.py")
    assert not [flag.names for flag in FLAGS if (flag.help or flag.part != "tuning") and flag.names[-1] not in out]
    assert horovodrun("-v")[1].strip() == __version__
    code, out, _ = horovodrun("--check-build")
    assert code == 0
    assert "[X] PyTorch" in out
    assert "[ ] TensorFlow" in out


def test_other_hosts_get_the_users_variables_but_no_rank() -> None:
    given = dict.fromkeys(LAUNCHER_VARIABLES, "1") | {"HOROVOD_CYCLE_TIME": "5", "NCCL_DEBUG": "INFO", "HOME": "/"}
    assert horovod_environment(given) == {"HOROVOD_CYCLE_TIME": "5", "NCCL_DEBUG": "INFO"}


def test_an_environment_variable_is_typed_with_its_value(paceline_, launched) -> None:
    assert paceline_("run", "--env", "A=1", "--env", "B=x=y", "train.py")[0] == 0
    assert launched.runs[0].environment == ("A=1", "B=x=y")
    code, _, err = paceline_("run", "--env", "A", "train.py")
    assert code == 2
    assert "--env NAME=VALUE" in err


def test_a_script_that_calls_init_is_run_as_horovod_without_as(paceline_, launched, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    code, _, err = paceline_("run", "-n", "2", "train.py")
    assert (code, launched.runs[0].launch_as) == (0, "horovod")
    assert "as horovod" in err
    code, _, err = paceline_("run", "-n", "2", "--batch", "scale", "train.py")
    assert code == 2
    assert "--batch and --as horovod exclude each other" in err


@pytest.mark.parametrize("verb", ["scale -n 1,2", "sweep", "tune"])
def test_verbs_that_change_scripts_say_that_it_distributes_itself(
    paceline_, launched, tmp_path: Path, verb: str
) -> None:
    (tmp_path / "train.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    code, _, err = paceline_(*verb.split(), "train.py")
    assert code == 2
    assert "train.py distributes itself with Horovod" in err
    assert not launched.runs
