"""`horovod.run`: what it refuses before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

import paceline.horovod as horovod
from paceline.errors import PacelineError, UsageError
from paceline.horovod import runner


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"hosts": "a:1", "hostfile": "b"}, ValueError, "exclude each other"),
        ({"use_gloo": True, "use_mpi": True}, ValueError, "exclude each other"),
        ({"min_num_proc": 1}, UsageError, "elastic runs of Horovod functions are not supported yet"),
        ({"host_discovery_script": "hosts.sh"}, UsageError, "elastic runs"),
        ({"hosts": "localhost:1,far:1"}, UsageError, "far is another one"),
    ],
)
def test_arguments_that_cannot_be_had_are_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        horovod.run(print, **given)


def test_a_function_that_pickle_cannot_take_is_refused_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cloudpickle", None)  # as if it were not installed
    with pytest.raises(PacelineError, match="pip install cloudpickle"):
        horovod.run(lambda: 1)


def test_the_old_name_of_an_argument_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = []

    class Done:
        returncode = 3

    monkeypatch.setattr(runner.subprocess, "run", lambda command, check: typed.append(command) or Done)
    with (
        pytest.warns(DeprecationWarning, match="num_proc"),
        pytest.raises(RuntimeError, match=r"'print' failed on one of 2 workers \(exit code 3\)"),
    ):
        horovod.run(print, np=2, verbose=1)
    assert typed[0][3:6] == ["-np", "2", "--verbose"]


def test_the_package_has_no_other_attribute() -> None:
    assert horovod.run is runner.run
    with pytest.raises(AttributeError, match="has no attribute 'runs'"):
        horovod.runs  # noqa: B018
