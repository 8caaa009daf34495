"""The name `horovod` in a script, and `hvd.init()` as the sign that it distributes itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Play = Callable[..., Any]

BEGINS = """
import sys
import torch
import horovod
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce
from horovod import torch as same

hvd.init()
assert same is hvd and horovod.torch is hvd and allreduce is hvd.allreduce
assert sys.modules["horovod"] is sys.modules["paceline.horovod"]
print(hvd.rank(), hvd.size(), hvd.allreduce(torch.tensor([hvd.rank() + 1.0])).item())
"""


def test_a_script_imports_horovod_and_every_rank_speaks_for_itself(play: Play) -> None:
    played = play(BEGINS, launch_as="horovod").well
    assert (played.printed, played.log(1)) == ("0 2 1.5\n", "1 2 1.5\n")
    assert not played.notices


@pytest.mark.parametrize(
    "name",
    ["tensorflow.keras", "ray", *(pytest.param(n, marks=pytest.mark.slow) for n in ("tensorflow", "mxnet", "spark"))],
)
def test_frameworks_that_are_not_there_are_named(play: Play, name: str) -> None:
    played = play(f"import horovod.{name} as hvd", launch_as="horovod", workers=1)
    assert f"horovod.{name.split('.')[0]}: Paceline has Horovod's interface for PyTorch" in played.outcome.message


def test_init_without_as_is_refused_with_the_command(play: Play, tmp_path: Path) -> None:
    script = "import horovod.torch as hvd\nif True:\n    hvd.init()\nprint('went on')"
    played = play(script, arguments=("--horovod",))
    assert "train.py:3 calls hvd.init()" in played.outcome.message
    assert f"Type: paceline run -n 2 --as horovod {tmp_path / 'train.py'} --horovod" in played.outcome.message
    assert "Traceback" not in played.outcome.message
    assert not played.printed


def test_a_single_worker_may_begin_anyhow(play: Play) -> None:
    assert play(BEGINS, workers=1).well.printed == "0 1 1.0\n"


def test_a_script_that_tries_whether_horovod_is_there_stays_one_for_a_single_process(play: Play) -> None:
    script = """
        import importlib.util
        try:
            import horovod.torch as hvd
        except ImportError:
            hvd = None
        print(hvd, importlib.util.find_spec("horovod"))
        """
    played = play(script).well
    assert played.printed == "None None\n"
    [notice] = [notice for notice in played.notices if "Horovod" in notice]
    assert "train.py:4 imports Horovod if it is installed" in notice
    assert "--as horovod" in notice
    assert "paceline.horovod.torch" in play(script, launch_as="horovod").printed


def test_libraries_hear_what_plain_python_tells_them(play: Play, tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "asks.py"
    library.parent.mkdir()
    library.write_text("try:\n    import horovod\n    found = True\nexcept ImportError:\n    found = False\n")
    script = f"import sys\nsys.path.append({str(library.parent)!r})\nimport asks\nprint(asks.found)\n"
    played = play(script).well
    assert played.printed == "False\n"
    assert not [notice for notice in played.notices if "Horovod" in notice]
    assert play(script, launch_as="horovod").well.printed == "True\n"


def test_without_init_every_worker_says_that_it_ran_all_of_the_script(play: Play) -> None:
    [notice] = play("print('hello')", launch_as="horovod").well.notices
    assert "did not call hvd.init(): each of the 2 workers ran all of it" in notice


def test_an_installed_horovod_is_the_one_that_is_imported(play: Play, tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()  # beside the script, hence on its path
    (tmp_path / "horovod" / "__init__.py").write_text("real = True")
    (tmp_path / "horovod" / "torch.py").write_text("def init():\n    print('the real one')")
    assert play("import horovod.torch as hvd\nhvd.init()", workers=1).well.printed == "the real one\n"


def test_results_of_a_spawned_pool_find_the_classes_of_the_script(play: Play) -> None:
    script = """
        import multiprocessing
        class Thing:
            value = 3
        def make(number):
            return Thing()
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(type(pool.map(make, [1])[0]).value)
        """
    assert play(script, workers=1).well.printed == "3\n"
