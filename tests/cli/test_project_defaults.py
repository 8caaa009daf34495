"""Defaults of a project: variables, paceline.toml, pyproject.toml; which beats which, and what is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from paceline.cli.defaults import NO_OPTIONS
from paceline.record.about.origin import read_origin

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith("PACELINE_"):
            monkeypatch.delenv(name)


@pytest.fixture
def project(launched, tmp_path):
    """Writes the files of a project."""

    def write(own: str = "", pyproject: str = "") -> Path:
        if own:
            (tmp_path / "paceline.toml").write_text(own)
        if pyproject:
            (tmp_path / "pyproject.toml").write_text(pyproject)
        return tmp_path

    return write


def test_options_from_both_files(project, launched, paceline_):
    project(
        own='[run]\nmod = ["precision=bf16", "channels_last"]\n',
        pyproject="[tool.paceline]\nseed = 7\n[tool.paceline.run]\nworkers = 2\noversubscribe = true\n",
    )
    assert paceline_("run", "train.py")[0] == 0
    [run] = launched.runs
    assert (run.workers, run.seed, run.mods) == (2, 7, ("precision=bf16", "channels_last"))


def test_which_beats_which(project, launched, paceline_, monkeypatch):
    project(pyproject="[tool.paceline]\nseed = 1\n")
    paceline_("run", "train.py")
    project(own="seed = 2\n")
    paceline_("run", "train.py")
    project(own="seed = 2\n[run]\nseed = 3\n")
    paceline_("run", "train.py")
    monkeypatch.setenv("PACELINE_SEED", "4")
    paceline_("run", "train.py")
    monkeypatch.setenv("PACELINE_RUN_SEED", "5")
    paceline_("run", "train.py")
    paceline_("run", "--seed", "6", "train.py", "--seed", "99")
    assert [run.seed for run in launched.runs] == [1, 2, 3, 4, 5, 6]


def test_what_is_typed_replaces_a_list(project, launched, paceline_, monkeypatch):
    monkeypatch.setenv("PACELINE_MOD", "precision=bf16 channels_last")
    paceline_("run", "train.py")
    paceline_("run", "--mod", "tf32", "train.py")
    assert [run.mods for run in launched.runs] == [("precision=bf16", "channels_last"), ("tf32",)]


def test_a_short_name_is_the_same_option(project, launched, paceline_):
    project(own="workers = 2\noversubscribe = true\n")
    paceline_("run", "-n", "1", "train.py")
    assert launched.runs[0].workers == 1


def test_a_switch_is_turned_off_by_a_variable(project, launched, paceline_, monkeypatch):
    project(own="no-autotune = true\n")
    paceline_("run", "train.py")
    monkeypatch.setenv("PACELINE_NO_AUTOTUNE", "false")
    paceline_("run", "train.py")
    assert [run.autotune for run in launched.runs] == [False, True]


def test_an_option_of_one_verb_is_not_given_to_another(project, launched, paceline_):
    project(own="[scale]\nrepeat = 1\n")
    assert paceline_("run", "train.py")[0] == 0


def test_paths_are_relative_to_the_file_also_from_a_folder_below(project, launched, paceline_, monkeypatch):
    folder = project(own='record = "all-runs"\n')
    (folder / "below").mkdir()
    (folder / "below" / "train.py").touch()
    monkeypatch.chdir(folder / "below")
    paceline_("run", "train.py")
    assert len(list((folder / "all-runs").iterdir())) == 1
    assert json.loads(paceline_("runs", "--json")[1])["total"] == 1
    assert json.loads(paceline_("runs", "show", "last", "--json")[1])["run"]["status"] == "succeeded"


def test_every_option_that_is_a_path_is_relative_to_the_file(project, launched, paceline_, monkeypatch):
    folder = project(own='[run]\ntimeline = "charts/steps.json"\n')
    (folder / "charts").mkdir()
    (folder / "below").mkdir()
    (folder / "below" / "train.py").touch()
    monkeypatch.chdir(folder / "below")
    assert paceline_("run", "train.py")[0] == 0


def test_the_record_knows_the_command_and_the_defaults(project, launched, paceline_, tmp_path):
    project(own="[run]\nseed = 3\n")
    paceline_("run", "train.py")
    [record] = (tmp_path / "paceline-runs").iterdir()
    origin = read_origin(record)
    assert origin.command == ["paceline", "run", "train.py"]
    assert origin.defaults == {"run --seed 3": "paceline.toml [run]"}


@pytest.mark.parametrize(
    ("own", "pyproject", "says", "advice"),
    [
        ("workrs = 2\n", "", "workrs is not an option of any verb", "Did you mean workers?"),
        ("[run]\nrepeat = 2\n", "", "[run]: repeat is not an option of `paceline run`", "It is an option of: scale"),
        ("[run]\nzzz = 2\n", "", "zzz is not an option", "paceline run --help"),
        ("[rum]\nseed = 2\n", "", "rum is not an option of any verb", "Did you mean run?"),
        ("", "[tool.paceline.scale]\nrepaet = 2\n", "[tool.paceline.scale]: repaet", "Did you mean repeat?"),
        ("[runs.prune]\nyes = true\n", "", "yes cannot be a default", "Type it"),
        ("seed = [1, 2]\n", "", "--seed takes one value", "paceline doctor"),
        ("no-autotune = 'maybe'\n", "", "--no-autotune is true or false", "paceline doctor"),
        ("seed = true\n", "", "--seed takes a text or a number", "paceline doctor"),
        ("seed = \n", "", "paceline.toml cannot be read", "Correct the file"),
        ("seed = 'x'\n", "", "--seed", "comes from paceline.toml"),
        ("[run]\nsave-every = 'x'\n", "", "--save-every x", "comes from paceline.toml [run]"),
    ],
)
def test_what_is_refused(project, launched, paceline_, own, pyproject, says, advice):
    project(own, pyproject)
    code, _, err = paceline_("run", "train.py")
    assert code == 2
    assert says in err
    assert advice in err
    assert not launched.runs
    assert paceline_("run", "--help")[0] == 0


def test_a_mistake_is_told_in_json(project, launched, paceline_):
    project(own="workrs = 2\n")
    code, out, _ = paceline_("run", "--json", "train.py")
    assert (code, json.loads(out)["error"]["advice"]) == (2, "Did you mean workers?")


def test_a_variable_that_is_no_option_is_refused(launched, paceline_, monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_WORKRES", "2")
    code, _, err = paceline_("run", "train.py")
    assert code == 2
    assert "Did you mean PACELINE_RUN_WORKERS?" in err


def test_variables_of_other_purposes_are_left_alone(launched, paceline_, monkeypatch):
    used = {name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"PACELINE_[A-Z_]+", path.read_text())}
    assert used - {*NO_OPTIONS} <= {"PACELINE_", "PACELINE_TEST_", "PACELINE_WORKERS"}, (
        "name it in NO_OPTIONS, or do not call it so"
    )
    monkeypatch.setenv("PACELINE_TRACEBACK", "full")
    monkeypatch.setenv("PACELINE_NODE", "0")
    assert paceline_("run", "train.py")[0] == 0
    monkeypatch.setenv("PACELINE_NODES", "2")
    _, _, err = paceline_("run", "train.py")
    assert "--nodes comes from PACELINE_NODES" in err


def test_a_file_of_another_account_is_not_used(project, launched, paceline_):
    folder = project(own="seed = 3\n")
    (folder / "paceline.toml").chmod(0o666)
    code, _, err = paceline_("run", "--seed", "1", "train.py")
    assert code == 0
    assert "paceline.toml is not used: every account may change it" in err


def test_a_file_above_the_repository_is_not_used(project, launched, paceline_, monkeypatch):
    folder = project(own="seed = 3\n")
    (folder / "repository" / ".git").mkdir(parents=True)
    (folder / "repository" / "train.py").touch()
    monkeypatch.chdir(folder / "repository")
    paceline_("run", "--json", "train.py")
    assert launched.runs[0].seed != 3


def test_the_doctor_shows_each_default_and_its_source(project, paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.doctor.examine", lambda record: [])
    monkeypatch.setenv("PACELINE_SEED", "4")
    project(own="seed = 2\n[run]\nworkers = 3\n", pyproject="[tool.paceline.run]\nworkers = 5\n")
    code, out, _ = paceline_("doctor", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["defaults"] == [
        {"option": "--seed 4", "source": "PACELINE_SEED", "beaten": False},
        {"option": "run --workers 3", "source": "paceline.toml [run]", "beaten": False},
        {"option": "--seed 2", "source": "paceline.toml", "beaten": True},
        {"option": "run --workers 5", "source": "pyproject.toml [tool.paceline.run]", "beaten": True},
    ]
    assert told["checks"][-1]["name"] == "defaults"
    _, out, _ = paceline_("doctor")
    assert re.search(r"run --workers 3 +paceline.toml \[run\]", out)


def test_the_doctor_works_with_wrong_defaults(project, paceline_, monkeypatch):
    monkeypatch.setattr("paceline.cli.doctor.examine", lambda record: [])
    project(own="workrs = 3\n")
    code, out, _ = paceline_("doctor")
    assert code == 1
    assert "workrs is not an option" in " ".join(out.split())
    assert "Did you mean workers?" in out
