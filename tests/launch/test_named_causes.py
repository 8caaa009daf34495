"""Every cause is named: whatever ends a worker, its author reads what it was, from the worker that it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from launched import Play

from paceline.errors import LaunchError
from paceline.launch import Zygote, launch
from paceline.settings import RunSettings
from paceline.wire.store import LinkServer

TRAINING = """
import os, sys, torch
from paceline.settings import of_this_process
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 100):
    if step == 8 and of_this_process().rank == 1:
        {fault}
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""
OTHER_USER = 54321  # nobody's number: its processes are those of the test
AS_ANOTHER = (
    *("setpriv", "--reuid", str(OTHER_USER), "--regid", str(OTHER_USER), "--clear-groups"),
    *("--bounding-set", "-all,+dac_override", "--inh-caps", "-all,+dac_override"),
    *("--ambient-caps", "-all,+dac_override"),  # to read an interpreter that is the superuser's own
)
another_user = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs to become another user, whom limits hold for"
)


def test_a_traceback_of_another_rank_is_in_its_log(play: Play) -> None:
    """Though what that rank opens while its script runs is not the real file."""
    launched = play(TRAINING.format(fault='raise ValueError("bad luck")'))
    assert launched.outcome.failed_rank == 1
    assert launched.log(1).startswith("Traceback")
    assert launched.log(1).rstrip().endswith("ValueError: bad luck")


def test_a_thread_of_the_launcher_that_dies_ends_the_run(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers wait for the store, which nobody serves any more."""

    def die(server: LinkServer) -> None:
        raise OverflowError("a fault")

    monkeypatch.setattr(LinkServer, "serve", die)
    monkeypatch.setattr(threading, "excepthook", lambda died: None)
    with pytest.raises(LaunchError, match="thread 'store of the launcher' has ended: OverflowError: a fault"):
        play(TRAINING.format(fault=""))


@pytest.mark.parametrize("name", ["paceline-control", "paceline another"])
def test_a_thread_of_a_worker_that_dies_ends_the_run(play: Play, name: str) -> None:
    """While the script would go on for ever. The thread of heartbeats cannot even tell of it."""
    launched = play(
        f"""
        import gc, threading
        from paceline import threads
        from paceline.launch.control import Control
        def die(*_):
            raise OverflowError("a fault")
        if {name!r} == "paceline-control":
            (control,) = [found for found in gc.get_objects() if isinstance(found, Control)]
            control._beat = die
        else:
            threads.start({name!r}, die)
        threading.Event().wait()
        """,
        workers=1,
    )
    assert launched.outcome.exit_code == 1
    assert "OverflowError: a fault" in launched.log(0)


def test_an_error_of_megabytes_is_cut_for_the_terminal_and_whole_in_the_log(play: Play) -> None:
    launched = play(TRAINING.format(fault='raise ValueError("x" * 3_000_000 + " the end")'))
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, 1)
    assert outcome.cause.startswith("raised ValueError: xxx")
    assert "in <module>" in outcome.message
    assert "characters are left out" in outcome.message
    assert " the end" in outcome.message
    assert len(outcome.message) < 100_000
    assert launched.log(1).count("x") > 2_999_999


def test_an_error_that_utf_8_cannot_say_is_told(play: Play) -> None:
    launched = play(TRAINING.format(fault=r'raise OSError("no such file: caf\udce9")'))
    assert launched.outcome.cause == r"raised OSError: no such file: caf\udce9"
    assert r"OSError: no such file: caf\udce9" in launched.log(1)


@pytest.mark.parametrize(("name", "advice"), [("SIGKILL", "out of memory"), ("SIGBUS", "--shm-size")])
def test_a_killed_process_of_a_data_loader_is_named(play: Play, name: str, advice: str) -> None:
    launched = play(
        f"""
        import os, signal, torch
        from torch.utils.data import DataLoader, Dataset
        class Data(Dataset):
            def __len__(self):
                return 80
            def __getitem__(self, index):
                if index == 41:
                    os.kill(os.getpid(), signal.{name})
                return torch.ones(1)
        for batch in DataLoader(Data(), batch_size=8, num_workers=1):
            pass
        """,
        workers=1,
    )
    message = launched.outcome.message
    assert "A process of the script's DataLoader (pid " in message
    assert f"was killed by {name}" in message
    assert advice in message
    assert "paceline/launch" not in message


def test_a_wrong_call_of_the_scripts_own_group_is_its_cause(play: Play) -> None:
    launched = play(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        ones = torch.ones(3)
        dist.all_reduce(ones)
        if dist.get_rank() == 1:
            dist.all_gather([ones], ones)
        dist.all_reduce(ones)
        """,
        launch_as="torchrun",
    )
    assert launched.outcome.failed_rank == 1
    assert "invalid output tensor list" in launched.outcome.cause
    assert "dist.all_gather([ones], ones)" in launched.outcome.message


def test_a_worker_that_exits_with_0_in_the_middle_is_named(play: Play) -> None:
    launched = play(TRAINING.format(fault='print("bye", flush=True); os._exit(0)'))
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank) == (1, 1)
    # Its last steps may not have been told of when it left.
    assert re.fullmatch(r"exited with code 0 in the middle of its script, after step [1-7] or later", outcome.cause)
    assert "Worker 0 was waiting for it" in outcome.message
    assert "os._exit(0)" in outcome.message
    assert "  bye" in outcome.message


def test_a_worker_whose_script_is_over_too_early_is_named(play: Play) -> None:
    launched = play(TRAINING.format(fault="sys.exit()"))
    assert launched.outcome.exit_code == 1
    assert re.search(r"worker 1: .* at the script's end", launched.outcome.message)


def test_a_script_may_end_every_worker_by_hand(play: Play) -> None:
    assert play("import os\nprint('done', flush=True)\nos._exit(0)").outcome.exit_code == 0


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def poor_zygote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Zygote]:
    """One that may start a single process more than it is itself with its threads: with the lowest limit that it can
    live with. It has one child process while it starts, its check of torch."""
    wrapper = tmp_path / "python"
    python = sys.executable
    monkeypatch.setattr(sys, "executable", str(wrapper))
    for limit in range(2, 2 * (os.cpu_count() or 1) + 10):
        wrapper.write_text(f'#!/bin/sh\nexec {" ".join(AS_ANOTHER)} prlimit --nproc={limit} {python} "$@"\n')
        wrapper.chmod(0o755)
        with Zygote.start() as poor:
            try:
                while poor.ready is None:
                    poor.receive()
            except LaunchError:
                continue
            yield poor
            return
    pytest.fail("the zygote does not start with any limit")


@another_user
def test_a_worker_that_cannot_be_forked_is_an_error_that_says_why(poor_zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(1000)")
    run = RunSettings(script=str(tmp_path / "train.py"), workers=2)
    with pytest.raises(LaunchError, match=r"Worker 1 could not be started: .* \(EAGAIN\)") as caught:
        launch(run, zygote=poor_zygote, record=tmp_path / "record", on_event=print)
    assert "ulimit -u" in caught.value.advice


def typed(tmp_path: Path, *before: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "train.py").write_text("print('ran')")
    line = [*before, sys.executable, "-m", "paceline", "run", "-n", "2", "train.py"]
    return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


def is_refused(done: subprocess.CompletedProcess[str], tmp_path: Path, *said: str) -> None:
    assert done.returncode == 1
    assert all(words in done.stderr for words in said), done.stderr
    assert len(done.stderr.splitlines()) == 2, "what was found and what to type, and nothing else"
    assert done.stdout == ""
    assert not (tmp_path / "paceline-runs").exists()


@pytest.mark.parametrize("files", [20, pytest.param(50, marks=pytest.mark.slow)])
def test_too_few_descriptors_are_told_before_anything_starts(tmp_path: Path, files: int) -> None:
    done = typed(tmp_path, "sh", "-c", f'ulimit -n {files} && exec "$@"', "sh")
    is_refused(done, tmp_path, f"the limit is {files} (ulimit -n)", "ulimit -n 1024")


@another_user
def test_too_few_processes_are_told_before_anything_starts(tmp_path: Path) -> None:
    done = typed(tmp_path, *AS_ANOTHER, "prlimit", "--nproc=5")
    is_refused(done, tmp_path, "could be started", "ulimit -u 4096")


def test_a_script_that_opens_too_many_files_is_told_the_limit(play: Play) -> None:
    launched = play(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        kept = [open(__file__) for _ in range(200)]
        """,
        workers=1,
    )
    assert "kept = [open(__file__)" in launched.outcome.message
    assert "the limit is 100: ulimit -n" in launched.outcome.message
    assert launched.outcome.exit_code != 128 + signal.SIGABRT
