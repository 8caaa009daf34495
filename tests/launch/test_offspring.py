from __future__ import annotations

import subprocess
import sys

import pytest

# A loader process offers a descriptor; its parent connects and is gone before it has said what it wants, as a worker
# is that dies there. A second, whole exchange shows that the first one has been dealt with, and that the thread lives.
SCRIPT = """
import multiprocessing, os, sys
from multiprocessing.connection import Client
from multiprocessing.reduction import DupFd
from paceline.launch.worker import offspring

def offer(pipe):
    read, _ = os.pipe()
    pipe.send(DupFd(read))
    pipe.recv()
    {fault}

if {hushed}:
    offspring.hush()
fork = multiprocessing.get_context("fork")
here, there = fork.Pipe()
loader = fork.Process(target=offer, args=(there,))
loader.start()
handle = here.recv()
Client(handle._id[0], authkey=fork.current_process().authkey).close()
os.close(handle.detach())
here.send(None)
loader.join()
"""


def errors(hushed: bool, fault: str = "pass") -> str:
    script = SCRIPT.format(hushed=hushed, fault=fault)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def test_a_loader_process_says_nothing_of_a_worker_that_is_gone() -> None:
    assert "resource_sharer" in errors(hushed=False)
    assert errors(hushed=True) == ""


@pytest.mark.parametrize(
    "fault", ["raise OSError('the disk is full')", "sys.excepthook(*[EOFError, EOFError(), None])"]
)
def test_a_loader_process_tells_of_its_own_errors(fault: str) -> None:
    assert "Error" in errors(hushed=True, fault=fault)
