"""`paceline demo` as a person types it first: real workers, no arguments or few."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.record import read_run

DEMO = (sys.executable, "-m", "paceline", "demo")


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=390, check=False)


@pytest.mark.slow
def test_plain_python_and_workers_print_the_same_numbers(tmp_path):
    done = typed(tmp_path, *DEMO, "--budget", "1s", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    lines = document["same_numbers"]["lines"]
    assert document["same_numbers"]["same"], lines
    assert [line["plain"].split()[:2] for line in lines] == [["epoch", "1"], ["epoch", "2"]]
    accuracy = [float(line["workers"].split()[-1]) for line in lines]
    assert accuracy[0] < accuracy[1]  # there is something to learn
    assert accuracy[1] > 0.6
    assert "same numbers: yes" in done.stderr
    assert document["points"][1]["speedup"] > 0
    assert read_run(tmp_path / document["record"]).verb == "scale"


@pytest.mark.slow
def test_all_of_it_and_the_command_to_keep(tmp_path):
    done = typed(tmp_path, *DEMO, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["same_numbers"]["same"]
    assert document["tune"]["final"] is not None, done.stderr
    kept = shlex.split(document["tune"]["command"])
    assert kept[0] == "paceline"
    again = typed(tmp_path, *DEMO[:-1], *kept[1:])
    assert again.returncode == 0, again.stderr
    assert "epoch 2" in again.stdout


def test_ctrl_c_ends_plain_python_too(tmp_path):
    process = subprocess.Popen(DEMO, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        script: list[psutil.Process] = []
        end = time.monotonic() + 60
        while not script:
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)
            children = psutil.Process(process.pid).children(recursive=True)
            script = [child for child in children if any("train.py" in word for word in _words(child))]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    [record] = (tmp_path / "paceline-runs").iterdir()
    assert read_run(record).outcome.interrupted


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
