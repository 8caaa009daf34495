"""CONTRIBUTING.md is true: its code blocks are applied to a copy of the sources, and the toys that they add work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGE = ROOT / "src" / "paceline"
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
TRAIN = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def apply(block: str, root: Path) -> Path:
    """Does to the sources below `root` what a code block says in its first line."""
    head, _, body = block.partition("\n")
    if path := re.fullmatch(r"# new file: (\S+)", head):
        target = root / path[1]
        assert not target.exists(), target
        target.write_text(body)
        return target
    place = re.fullmatch(r"# (\S+), after the line: (.+)", head)
    assert place, f"a block that says no place: {head}"
    target = root / place[1]
    lines = target.read_text().splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.strip() == place[2].strip()]
    assert at, f"{place[1]} has no line {place[2]!r}"
    lines.insert(at[0] + 1, body)
    target.write_text("".join(lines))
    return target


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """A copy of the project's sources, with every toy of CONTRIBUTING.md in it."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "src", root / "src")  # with what was compiled, which holds for unchanged files
    blocks = [textwrap.dedent(block) for block in BLOCK.findall(TEXT)]
    changed = {apply(block, root) for block in blocks}
    rooms = {path.relative_to(root / "src" / "paceline").parts[0] for path in changed}
    assert {"mods", "strategies", "advise", "cli"} <= rooms  # each of the four sections has blocks
    (root / "train.py").write_text(TRAIN)
    return root


@pytest.fixture(scope="module")
def typed(sources) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Types `python …` beside the copy, whose paceline is the one that is imported."""

    def type_it(*words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=sources,
            env=os.environ | {"PYTHONPATH": str(sources / "src")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return type_it


@pytest.fixture(scope="module")
def ran(typed) -> tuple[dict, str]:
    """One run with the toy mod under the toy strategy: its document, and what was said."""
    done = typed("-m", "paceline", "run", "-n", "2", "--mod", "toy", "--strategy", "toy(times=3)", "--json", "train.py")
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def printed(typed) -> dict[tuple[str, ...], str]:
    """What command lines print that start no worker: all of them in one process."""
    lines = [("mods",), ("--help",), ("toy", "--help"), ("toy", "hello"), ("toy", "hello", "--json")]
    code = f"from paceline.__main__ import main\nfor line in {lines}:\n    assert main(line) == 0\n    print(end='\\f')"
    return dict(zip(lines, typed("-c", code).stdout.removesuffix("\f").split("\f"), strict=True))


def test_a_mod_is_listed_and_runs(printed, ran):
    assert "counts optimizer steps" in printed[("mods",)]
    document, said = ran
    assert document["mods"] == ["toy"]
    assert "The toy mod counted 5 steps." in said


def test_a_strategy_is_chosen(sources, ran):
    document, said = ran
    assert "The strategy is toy, 3 times." in said
    run = json.loads((sources / document["record"] / "run.json").read_text())
    assert run["settings"]["strategy"] == "toy(times=3)"


def test_a_rule_speaks_and_is_in_the_book(typed, ran):
    code = "import sys; from pathlib import Path; from paceline.advise.registry import findings; "
    code += "print([f.title for f in findings(Path(sys.argv[1])) if f.rule == 'toy']); "
    code += "import runpy; runpy.run_module('paceline.advise.book', run_name='__main__')"
    found, _, book = typed("-c", code, ran[0]["record"]).stdout.partition("\n")
    assert found == "['only 5 steps']"
    assert "The run made few steps." in book


def test_a_verb_is_in_the_help_and_runs(printed):
    assert "Says a word." in printed[("--help",)]
    assert printed[("toy", "--help")].strip().startswith("Example: paceline toy hello")
    assert printed[("toy", "hello")] == "hello\n"
    assert json.loads(printed[("toy", "hello", "--json")])["word"] == "hello"


@pytest.mark.slow  # mypy reads all sources anew; `make lint` does it for the real ones
def test_the_toys_keep_to_the_rules_of_the_project(sources):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "src"],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_room_is_in_the_table():
    rooms = {path.name for path in PACKAGE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"}
    listed = set(re.findall(r"`([a-z_]+(?:/|\.py))`", TEXT[TEXT.index("| room |") : TEXT.index("Two rules about")]))
    missing = {room for room in rooms if room not in listed and f"{room}/" not in listed}
    assert not missing


def test_every_file_and_folder_that_is_named_is_there():
    named = set(re.findall(r"`((?:src|tests|docs|benchmarks|[a-z]+)/[\w./]+)`", TEXT)) - {"checkpoint/", "horovod/"}
    homes = (ROOT, ROOT / "src", PACKAGE)
    assert named
    assert not {name for name in named if not any((home / name).exists() for home in homes)}
