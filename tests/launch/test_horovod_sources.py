"""Whether a script distributes itself with Horovod is told from its source, without running it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from paceline.launch.horovod_scripts import distributes_itself

CALLS = {
    "its documentation": "import torch\nimport horovod.torch as hvd\n\nhvd.init()\n",
    "in a function": "import horovod.torch as hvd\ndef main():\n    hvd.init()\nif __name__ == '__main__': main()\n",
    "imported in a function": "def main():\n    import horovod.torch as hvd\n    hvd.init()\nmain()\n",
    "the full name": "import horovod.torch\nhorovod.torch.init()\n",
    "from the package": "from horovod import torch as hvd\nhvd.init()\n",
    "by name": "from horovod.torch import init, rank\ninit()\n",
    "with an alias": "from horovod.torch import init as begin\nbegin(process_sets=[])\n",
    "everything": "from horovod.torch import *\ninit()\n",
    "if it is there": """
        try:
            import horovod.torch as hvd
        except ImportError:
            hvd = None
        if hvd is not None:
            hvd.init()
        """,
    "keras": "import keras\nimport horovod.keras as hvd\nhvd.init()\n",
}
TELLS_NOTHING = {
    "no Horovod": "import torch\ntorch.init = 1\n",
    "a word": "# from horovod.torch import init\nprint('import horovod.torch as hvd; hvd.init()')\n",
    "an option": "import horovod.torch as hvd\nif args.horovod:\n    hvd.init()\n",
    "never begun": "import horovod.torch as hvd\nprint(hvd.__name__)\n",
    "another init": "import horovod.torch as hvd\nimport wandb\nwandb.init()\n",
    "no syntax": "import horovod.torch as hvd\nhvd.init(\n",
}


@pytest.mark.parametrize("source", [pytest.param(text, id=name) for name, text in CALLS.items()])
def test_a_call_of_init_is_the_sign(tmp_path: Path, source: str) -> None:
    (script := tmp_path / "train.py").write_text(textwrap.dedent(source))
    assert distributes_itself(str(script), module=False)


@pytest.mark.parametrize("source", [pytest.param(text, id=name) for name, text in TELLS_NOTHING.items()])
def test_without_it_the_script_is_one_for_a_single_process(tmp_path: Path, source: str) -> None:
    (script := tmp_path / "train.py").write_text(source)
    assert not distributes_itself(str(script), module=False)


def test_modules_beside_the_script_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, parts.engine as engine\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").touch()
    (tmp_path / "parts" / "engine.py").write_text("from . import (\n    other,\n    world,  # which one\n)\n")
    (tmp_path / "parts" / "other.py").write_text("from .engine import nothing\n")
    (tmp_path / "parts" / "world.py").write_text("import horovod.torch as hvd\nhvd.init()\n")
    assert distributes_itself(str(tmp_path / "train.py"), module=False)
    (tmp_path / "train.py").write_text("import os\n")
    assert not distributes_itself(str(tmp_path / "train.py"), module=False)


@pytest.mark.parametrize(
    ("script", "module"),
    [
        ("import world\n", "def begin():\n    import horovod.torch as hvd\n    hvd.init()\n"),
        ("import world\n", "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None\nhvd.init()\n"),
        ("if args.horovod:\n    import world\n", "import horovod.torch as hvd\nhvd.init()\n"),
    ],
)
def test_a_module_that_may_never_be_used_tells_nothing(tmp_path: Path, script: str, module: str) -> None:
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "world.py").write_text(module)
    assert not distributes_itself(str(tmp_path / "train.py"), module=False)


def test_a_module_is_looked_for_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text("from program.train import main\n")
    (tmp_path / "program" / "train.py").write_text(CALLS["in a function"])
    monkeypatch.chdir(tmp_path)
    assert distributes_itself("program", module=True)
    assert distributes_itself("program.train", module=True)
    assert not distributes_itself("json.tool", module=True)


def test_with_the_real_one_installed_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (script := tmp_path / "train.py").write_text(CALLS["its documentation"])
    (tmp_path / "site" / "horovod").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert distributes_itself(str(script), module=False), "an empty folder is no package"
    (tmp_path / "site" / "horovod" / "__init__.py").touch()
    assert not distributes_itself(str(script), module=False)


def test_a_script_that_cannot_be_read_is_left_to_the_checks_that_follow(tmp_path: Path) -> None:
    assert not distributes_itself(str(tmp_path / "nowhere.py"), module=False)
    assert not distributes_itself(str(tmp_path), module=False)
