"""Without the extra `view`, a run and the list of runs are whole; the other verbs say what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

# One process types several command lines; a package of the extra cannot be imported in it.
TYPE = """
import sys
class Missing:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {gone!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from paceline.__main__ import main
for typed in {typed!r}:
    print("exit code", main(typed), flush=True)
"""


def type_without(gone: set[str], folder: Path, *typed: str) -> subprocess.CompletedProcess[str]:
    code = TYPE.format(gone=gone, typed=[line.split() for line in typed])
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=True
    )


@pytest.fixture
def gone() -> set[str]:
    """The packages of the extra, and those that come with them."""
    names = {requirement.partition(">")[0] for requirement in PROJECT["optional-dependencies"]["view"]}
    assert {"polars", "starlette"} <= names
    return names | {"anyio", "h11", "matplotlib"}


def test_a_run_its_record_and_the_list_of_runs_need_no_extra(gone, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = type_without(gone, tmp_path, "run -n 1 train.py", "runs --json")
    assert done.stdout.count("exit code 0") == 2, done.stderr
    assert done.stdout.startswith("trained\n")
    listed = json.loads(done.stdout.partition("exit code 0\n")[2].partition("exit code")[0])
    assert [(each["verb"], each["status"]) for each in listed["runs"]] == [("run", "succeeded")]


def test_a_verb_that_needs_the_extra_says_what_to_type_before_it_does_anything(gone, tmp_path):
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = type_without(gone, tmp_path, "profile train.py", "view")
    assert done.stdout == "exit code 2\nexit code 2\n"
    assert done.stderr.count("needs packages that are not installed: polars, starlette, uvicorn, jinja2.") == 2
    assert done.stderr.count("Type: pip install 'paceline[view]'") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
