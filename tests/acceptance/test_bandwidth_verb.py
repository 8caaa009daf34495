"""`paceline bandwidth` as a person types it, with two workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.record import read_run

COMMAND = ["bandwidth", "-n", "2", "--quick"]


def the_record(folder: Path) -> Path:
    [record] = (folder / "paceline-runs").iterdir()
    return record


# Eleven collectives take seven seconds; tests/comm/measuring measures them on workers, for a moment each.
@pytest.mark.parametrize("parts", ["pairs", pytest.param("pairs,collectives", marks=pytest.mark.slow)])
def test_two_workers_and_one_size(typist, tmp_path, parts):
    done = typist.type(tmp_path, *COMMAND, "--only", parts, "--sizes", "256K", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {(pair["a"], pair["b"], pair["backend"]) for pair in document["pairs"]} == {
        (0, 1, "memory"),
        (0, 1, "gloo"),
    }
    found = {(each["op"], each["backend"], each["algorithm"], each["bytes"]) for each in document["collectives"]}
    assert len(found) == len(document["collectives"]) == (5 * 2 + 1 if "collectives" in parts else 0)
    for each in document["collectives"]:
        assert each["algbw"] == pytest.approx(each["bytes"] / each["seconds"] / 1e9)
        assert each["low"] <= each["seconds"] <= each["high"]
        assert each["share"] > 0
    assert all(pair["gb_per_s"] > 0 and pair["latency"] < 1 for pair in document["pairs"])
    assert "pairs of workers, through shared memory" in done.stderr
    trial = the_record(tmp_path) / "trials" / "workers"
    assert (trial / "measurements.jsonl").is_file()
    assert not list(trial.glob("steps.rank*.jsonl"))  # no training script, so nobody looks for its steps


@pytest.mark.slow  # test_verbs.py stops another series; cli/test_typing_bandwidth.py plays an interrupted trial
def test_ctrl_c_leaves_no_worker_and_a_readable_record(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline", *COMMAND, "--only", "pairs,collectives", "--sizes", "1K,16M"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    try:
        report = "paceline-runs/*/trials/workers/measurements.jsonl"
        until(lambda: any(path.stat().st_size for path in tmp_path.glob(report)), process)
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 3  # the zygote and two workers
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "interrupted" in out
    assert not psutil.wait_procs(below, timeout=60)[1]
    record = the_record(tmp_path)
    assert read_run(record).outcome.interrupted  # type: ignore[union-attr]
    assert json.loads((record / "verdict.json").read_text())["interrupted"] is True


def until(condition, process) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended too soon"
        assert time.monotonic() < deadline
        time.sleep(0.01)
