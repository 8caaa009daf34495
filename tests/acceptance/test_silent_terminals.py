"""A run over hosts whose terminal does not read, or whose command is stopped, for longer than a host waits for news."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.launch.cluster.agent import LOST
from paceline.launch.processes import state_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
SCRIPT = f"""
import time
end = time.monotonic() + {LOST + 4}
number = 0
while time.monotonic() < end:
    number += 1
    print(number, "x" * 1000, flush=True)
    time.sleep(0.01)
open("end", "w").close()
print("the end")
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The run, which has printed a line."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "paceline", "run", "--hosts", "localhost:1", "--quiet", "train.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1 x")
    yield process
    process.kill()
    process.communicate()


def until(end: Path) -> None:
    """The script has ended."""
    by = time.monotonic() + 120
    while not end.exists():
        assert time.monotonic() < by
        time.sleep(0.05)


def ended(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stderr is not None
    lines = process.stdout.read().splitlines()
    assert process.wait(60) == 0, process.stderr.read()
    assert [int(line.split()[0]) for line in lines[:-1]] == list(range(2, len(lines) + 1))
    assert lines[-1] == "the end"


def test_a_terminal_that_does_not_read(process: subprocess.Popen[str], tmp_path: Path) -> None:
    until(tmp_path / "end")
    ended(process)


def test_a_command_that_is_stopped_and_goes_on(process: subprocess.Popen[str], tmp_path: Path) -> None:
    process.send_signal(signal.SIGTSTP)
    while state_of(process.pid) != "T":
        assert process.poll() is None
        time.sleep(0.01)
    until(tmp_path / "end")
    process.send_signal(signal.SIGCONT)
    ended(process)
