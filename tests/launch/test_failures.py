"""A worker that fails stops the run, and its author reads why: once, from the worker that was the cause."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from launched import Launched, Play

from paceline.launch import Event, watch
from paceline.launch.failures.failure import _SETTLING, explain, killed_or_exited
from paceline.launch.zygote import process as zygote_process
from paceline.record import read_run
from paceline.record.schema import FailureKind

GROUP = """
import os, signal, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, ones = dist.get_rank(), torch.ones(1)
dist.all_reduce(ones)
print("all here", flush=True)
"""
WAIT_FOR_EACH_OTHER = """
for step in range(10**9):
    dist.all_reduce(ones)
"""


def test_a_killed_worker_is_named_with_its_last_lines(play: Play) -> None:
    launched = play(
        GROUP
        + """
for step in range(10**9):
    dist.all_reduce(ones)
    if rank == 1 and step == 20:
        print("the last thing I said")
        os.kill(os.getpid(), signal.SIGKILL)
""",
        launch_as="torchrun",
    )
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank) == (128 + signal.SIGKILL, 1)
    assert "SIGKILL" in outcome.cause
    assert f"Worker 1 on {os.uname().nodename} was killed by SIGKILL" in outcome.message
    assert "  the last thing I said" in outcome.message
    assert read_run(launched.record).outcome == outcome


def test_an_update_that_differs_is_found_where_the_run_ends_before_the_script(play: Play) -> None:
    launched = play(
        """
        import os, torch
        from torch import nn
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, 100):
            optimizer.zero_grad()
            model(torch.ones(4, 4)).sum().backward()
            if step == 3:
                model.weight.grad += os.getpid()
            optimizer.step()
        """,
        steps=3,
    )
    assert launched.outcome.exit_code != 0
    assert "differ after step 3" in launched.outcome.message
    assert "model.weight" in launched.outcome.message


def test_a_run_ends_soon_after_a_worker_failed(play: Play) -> None:
    """Also where the others take no notice, neither of it nor of SIGTERM."""
    failed = []

    def look(launched: Launched, event: Event) -> None:
        if "now" in launched.output() and not failed:
            failed.append(time.monotonic())

    launched = play(
        """
        import os, signal, sys, time
        from paceline.settings import of_this_process
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if of_this_process().rank == 1:
            while not os.path.exists(__file__ + ".ready"):
                time.sleep(0.01)
            raise ValueError("no more")
        print("now")
        open(__file__ + ".ready", "w").close()
        time.sleep(1000)
        """,
        on_event=look,
    )
    assert launched.outcome.exit_code == 1
    assert time.monotonic() - failed[0] < 60  # on a busy machine; the patience that it has is what was promised
    assert _SETTLING[FailureKind.RAISED] + watch._GRACE_FAILED + zygote_process._PATIENCE < 5


def test_an_exception_is_shown_once_without_our_frames(play: Play) -> None:
    launched = play(
        GROUP
        + """
def inner():
    raise ValueError("bad luck")
if rank == 1:
    inner()
"""
        + WAIT_FOR_EACH_OTHER,
        launch_as="torchrun",
    )
    outcome = launched.outcome
    assert (outcome.exit_code, outcome.failed_rank, outcome.cause) == (1, 1, "raised ValueError: bad luck")
    assert outcome.message.count("ValueError: bad luck") == 1
    assert "in inner" in outcome.message
    assert "paceline/" not in outcome.message.replace(str(launched.record), "")
    assert "runpy" not in outcome.message
    assert "Traceback" not in launched.output() + launched.output("stderr")
    assert launched.log(1).count("ValueError: bad luck") == 1


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher waits for all workers to fail, however late a busy machine lets them."""
    for kind in (FailureKind.RAISED, FailureKind.EXITED, FailureKind.CONSEQUENCE):
        monkeypatch.setitem(_SETTLING, kind, 60.0)


@pytest.mark.usefixtures("patient")
def test_an_exception_on_every_worker_is_shown_from_rank_0(play: Play) -> None:
    launched = play("import time\nprint('before')\nnothing['there']", workers=3)
    assert launched.outcome.failed_rank == 0
    assert launched.outcome.message.count("NameError: name 'nothing' is not defined") == 1
    assert launched.output("stderr") == ""
    assert "NameError" in launched.log(0)


def test_a_script_that_does_not_parse_is_shown_as_python_does(play: Play) -> None:
    launched = play("x = = 1\n")
    assert launched.outcome.exit_code == 1
    assert "SyntaxError: invalid syntax" in launched.outcome.message
    assert "x = = 1" in launched.outcome.message


def test_an_error_of_the_users_has_no_traceback(play: Play) -> None:
    launched = play(
        """
        from paceline.errors import ScriptError
        raise ScriptError("This cannot be kept.", advice="Type something else.")
        """
    )
    assert launched.outcome.exit_code == 1
    assert "This cannot be kept.\nType something else." in launched.outcome.message
    assert "Traceback" not in launched.outcome.message


@pytest.mark.usefixtures("patient")
def test_a_lost_peer_is_never_the_cause(play: Play) -> None:
    """Rank 0 reports its lost peer first; rank 1, the cause, is killed later."""
    launched = play(
        """
        import os, signal, sys, time
        from paceline.settings import of_this_process
        from paceline.errors import PeerLostError
        told = __file__ + ".told"
        if of_this_process().rank == 0:
            import atexit
            atexit.register(lambda: open(told, "w").close())
            raise PeerLostError("worker 1 is gone")
        while not os.path.exists(told):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert launched.outcome.failed_rank == 1
    assert "SIGKILL" in launched.outcome.cause


def test_a_failed_collective_of_the_scripts_own_group_is_not_the_cause(play: Play) -> None:
    launched = play(
        GROUP
        + """
if rank == 1:
    os._exit(7)
"""
        + WAIT_FOR_EACH_OTHER,
        launch_as="torchrun",
    )
    assert (launched.outcome.exit_code, launched.outcome.failed_rank) == (7, 1)
    assert launched.outcome.cause == "exited with code 7"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("statement", "code", "stderr"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('that was it')", 1, "that was it\n"),
        ("raise SystemExit(4)", 4, ""),
    ],
)
def test_a_scripts_own_exit_is_passed_on(play: Play, statement: str, code: int, stderr: str) -> None:
    launched = play(f"import sys\n{statement}")
    assert launched.outcome.exit_code == code
    assert launched.output("stderr") == stderr
    assert launched.log(1) == stderr


def test_one_worker_that_is_done_waits_for_the_others(play: Play) -> None:
    launched = play(
        """
        import os, time
        from paceline.settings import of_this_process
        done = __file__ + ".done"
        if of_this_process().rank == 0:
            open(done, "w").close()
        else:
            while not os.path.exists(done):
                time.sleep(0.01)
            time.sleep(0.5)
            print("done too")
        """
    )
    assert launched.outcome.exit_code == 0
    assert launched.log(1) == "done too\n"


def test_a_crash_in_c_leaves_a_python_stack(play: Play) -> None:
    launched = play(
        """
        import ctypes, time
        from paceline.settings import of_this_process
        def crash():
            ctypes.string_at(0)
        if of_this_process().rank == 1:
            crash()
        time.sleep(1000)
        """
    )
    assert launched.outcome.exit_code == 128 + signal.SIGSEGV
    assert "SIGSEGV" in launched.outcome.message
    assert "in crash" in launched.log(1)


def test_what_a_killed_worker_started_ends_with_it(play: Play) -> None:
    """Its loader processes, one that left its group, one that ignores SIGTERM; shared memory goes too. The check
    is `nothing_left_behind`."""
    launched = play(
        """
        import os, signal, subprocess, sys, time, torch
        from multiprocessing.shared_memory import SharedMemory
        from torch.utils.data import DataLoader, TensorDataset
        segment = SharedMemory(create=True, size=1000)
        loader = iter(DataLoader(TensorDataset(torch.arange(100.0)), num_workers=2, persistent_workers=True))
        next(loader)
        stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(1000)"
        for new_session in (True, False):
            child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=new_session,
                                     stdout=subprocess.PIPE)
            child.stdout.readline()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        workers=1,
    )
    assert launched.outcome.exit_code == 128 + signal.SIGKILL


def test_a_scripts_excepthook_is_called_and_writes_to_the_log(play: Play) -> None:
    launched = play(
        """
        import sys
        def hook(kind, error, trace):
            print("the tracker heard of", kind.__name__, file=sys.stderr)
        sys.excepthook = hook
        raise ValueError("bad luck")
        """,
        workers=1,
    )
    assert launched.outcome.cause == "raised ValueError: bad luck"
    assert "the tracker heard of ValueError" in launched.log(0)
    assert launched.output("stderr") == ""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[enforce fail at listener.cc:63] false. accept: Too many open files", "takes every connection"),
        ("[enforce fail at pair.cc:467] op.preamble.length <= op.nbytes. 8 vs 4", "entered different collectives"),
    ],
)
def test_an_abort_of_gloo_is_explained_by_what_gloo_says(tmp_path: Path, said: str, told: str) -> None:
    (tmp_path / "log.rank1.txt").write_text(
        f"terminate called after throwing 'gloo::EnforceNotMet'\n  what(): {said}\n"
    )
    message = explain(killed_or_exited(1, -signal.SIGABRT, 0.0), "a", tmp_path)
    assert told in message
    assert ("different collectives" in message) == ("different collectives" in told)
