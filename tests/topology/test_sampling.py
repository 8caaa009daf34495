"""How busy a machine is, sampled while a run runs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from paceline.record import Run, WorkerInfo, write_run
from paceline.record.samples import read_samples
from paceline.topology.sampling import Sampler, family_of


@pytest.mark.slow
def test_samples_are_taken_until_the_end_and_not_after_it(tmp_path):
    me = WorkerInfo(rank=0, host="here", pid=os.getpid(), cores=[0], threads=1)
    write_run(tmp_path, Run(paceline="0", verb="profile", script="train.py", arguments=[], settings={}, workers=[me]))
    deadline = time.monotonic() + 60
    with Sampler(tmp_path, every=0.01):
        while len(read_samples(tmp_path)) < 5 and time.monotonic() < deadline:
            sum(range(100_000))  # keeps a core busy
    samples = read_samples(tmp_path)
    assert len(samples) >= 5
    last = samples[-1]
    assert len(last.cpu) == os.cpu_count()
    assert all(0 <= share <= 1 for share in last.cpu)
    assert 0 < last.memory < last.memory_total
    [worker] = last.workers
    assert worker.rank == 0
    assert worker.memory > 1 << 20
    assert max(sample.workers[0].cpu for sample in samples[1:]) > 0
    assert not [thread for thread in threading.enumerate() if thread.name == "sampler"]


def test_loader_processes_count_with_their_worker(tmp_path):
    """Also those that a thread started, and those that they started."""
    waits = "import sys; sys.stdin.read()"
    begins = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {waits!r}]); print(flush=True); {waits}"
    pipe = subprocess.PIPE
    with ThreadPoolExecutor(1) as pool:
        child = pool.submit(subprocess.Popen, [sys.executable, "-c", begins], stdin=pipe, stdout=pipe).result()
        with child:
            child.stdout.readline()
            below = {process.pid for process in psutil.Process(child.pid).children()}
            assert len(below) == 1
            assert {child.pid} | below < set(family_of(os.getpid()))
            assert set(family_of(child.pid)) == {child.pid} | below
            child.communicate()  # ends them


def test_a_worker_that_is_gone_is_left_out(tmp_path):
    gone = WorkerInfo(rank=3, host="here", pid=2**22 + 1, cores=[], threads=1)
    write_run(tmp_path, Run(paceline="0", verb="profile", script="train.py", arguments=[], settings={}, workers=[gone]))
    deadline = time.monotonic() + 60
    with Sampler(tmp_path, every=0.01):
        while not read_samples(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.005)
    assert read_samples(tmp_path)[-1].workers == []


def test_a_folder_that_cannot_be_written_fails_nobody(tmp_path):
    with Sampler(tmp_path / "absent", every=0.01):
        pass
    assert read_samples(tmp_path / "absent") == []
