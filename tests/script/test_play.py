"""Playing a script: to it everything looks as under `python script.py` or `python -m module`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pool import alone

from paceline.comm.group import Group
from paceline.script.run_script import play
from paceline.settings import RunSettings

LOOKS = """
    import json, os, sys
    found = {
        "name": __name__,
        "file": os.path.basename(__file__),
        "argv": sys.argv,
        "path": sys.path[0],
        "main": sys.modules["__main__"].__dict__ is globals(),
        "spec": getattr(__spec__, "name", None),
        "builtins": __builtins__ is not None,
        "docs": __doc__,
        "cwd": os.getcwd(),
    }
    with open(OUT, "w") as file:
        json.dump(found, file)
"""


def played(group: Group, folder: str, settings: RunSettings) -> str:
    """How the script ended."""
    os.chdir(folder)
    try:
        play(settings)
    except SystemExit as end:
        return f"exit {end.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "end"


def under_paceline(folder: Path, script: str, *, module: bool = False, arguments: tuple[str, ...] = ()) -> str:
    with alone(1) as pool:
        return pool.run(played, str(folder), RunSettings(script=script, module=module, arguments=arguments))[0]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).replace("OUT", repr(str(path.parent / "found.json"))))
    return path


def found_by(path: Path) -> dict[str, Any]:
    return json.loads((path.parent / "found.json").read_text())


@pytest.mark.parametrize("where", ["train.py", "deep/er/train.py", "./train.py"])
def test_a_script_looks_round_and_sees_what_plain_python_shows(tmp_path: Path, where: str) -> None:
    path = write(tmp_path / where, '"""A script."""' + textwrap.dedent(LOOKS))
    subprocess.run([sys.executable, where, "--epochs", "3"], cwd=tmp_path, check=True)
    expected = found_by(path)
    assert under_paceline(tmp_path, where, arguments=("--epochs", "3")) == "end"
    assert found_by(path) == expected


def test_a_module_looks_round_and_sees_what_plain_python_shows(tmp_path: Path) -> None:
    path = write(tmp_path / "package" / "train.py", LOOKS)
    (tmp_path / "package" / "__init__.py").touch()
    subprocess.run([sys.executable, "-m", "package.train", "x"], cwd=tmp_path, check=True)
    expected = found_by(path)
    assert under_paceline(tmp_path, "package.train", module=True, arguments=("x",)) == "end"
    assert found_by(path) == expected


def test_a_package_with_a_main(tmp_path: Path) -> None:
    write(tmp_path / "package" / "__init__.py", "")
    write(tmp_path / "package" / "__main__.py", "import sys; sys.exit(__name__ == '__main__' and 7)")
    assert under_paceline(tmp_path, "package", module=True) == "exit 7"


def test_it_finds_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "lib" / "neighbour.py", "value = 5")
    write(tmp_path / "lib" / "train.py", "import neighbour, sys; sys.exit(neighbour.value)")
    assert under_paceline(tmp_path, "lib/train.py") == "exit 5"


def test_its_classes_can_be_pickled(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import pickle, sys
        class Point:
            pass
        point = pickle.loads(pickle.dumps(Point()))
        sys.exit(3 if isinstance(point, Point) and Point.__module__ == "__main__" else 1)
        """,
    )
    assert under_paceline(tmp_path, "train.py") == "exit 3"


def test_dataclasses_and_annotations_find_their_module(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        from __future__ import annotations
        import sys, typing
        from dataclasses import dataclass
        @dataclass
        class Options:
            depth: int = 3
        sys.exit(Options().depth if typing.get_type_hints(Options) == {"depth": int} else 1)
        """,
    )
    assert under_paceline(tmp_path, "train.py") == "exit 3"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("raise SystemExit", "exit None"),
        ("import sys; sys.exit(3)", "exit 3"),
        ("import sys; sys.exit('no data')", "exit no data"),
        ("raise KeyError('x')", "KeyError: 'x'"),
        ("1 +", "SyntaxError: invalid syntax (train.py, line 1)"),
        ("exit(4)", "exit 4"),
    ],
)
def test_however_it_ends_comes_through(tmp_path: Path, text: str, how: str) -> None:
    write(tmp_path / "train.py", text)
    assert under_paceline(tmp_path, "train.py") == how


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_its_encoding_is_its_own(tmp_path: Path, encoding: str) -> None:
    text = f"# -*- coding: {encoding} -*-\nimport sys\nsys.exit(len('äö'))\n"
    (tmp_path / "train.py").write_bytes(text.encode(encoding))
    assert under_paceline(tmp_path, "train.py") == "exit 2"


def traceback_of(group: Group, folder: str) -> str:
    import traceback

    os.chdir(folder)
    try:
        play(RunSettings(script="train.py"))
    except ValueError:
        return traceback.format_exc()
    return ""


def test_its_tracebacks_show_its_lines(tmp_path: Path) -> None:
    write(tmp_path / "train.py", "def fail():\n    raise ValueError('here')\nfail()\n")
    with alone(1) as pool:
        text = pool.run(traceback_of, str(tmp_path))[0]
    assert "train.py" in text
    assert "raise ValueError('here')" in text
