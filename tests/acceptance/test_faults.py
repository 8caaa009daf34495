"""Faults, as a person meets them: `paceline run` on real workers, and something goes wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shm import shared_memory
from typist import Typist

from paceline.record import read_run, read_steps
from paceline.record.schema import Run

TRAIN = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from paceline.settings import of_this_process

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def at_step(step):
    {fault}

step = 0
for epoch in range(1_000_000):
    for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers={loaders}):
        at_step(step)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        time.sleep(0.01)  # leaves the other tests some of the machine
"""


class Typed:
    """One `paceline` command line that runs."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, mark: str) -> None:
        self.process, self.mark = process, mark
        self.records, self.out, self.err = folder / "paceline-runs", folder / "out.txt", folder / "err.txt"

    def until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"still not so after {seconds} s; said so far: {self.end(kill=True)}")
            time.sleep(0.02)

    def until_in_mid_epoch(self) -> Run:
        """Until every worker has made some steps."""
        self.until(lambda: self.process.poll() is not None or all(len(self.steps(r)) > 3 for r in range(2)))
        assert self.process.poll() is None, self.end()
        return self.run

    def end(self, *, kill: bool = False) -> tuple[int, str, str]:
        """Waits for its end: exit code, standard output, standard error."""
        if kill:
            self.process.kill()
        return self.process.wait(timeout=120), self.out.read_text(), self.err.read_text()

    @property
    def record(self) -> Path:
        (folder,) = self.records.iterdir()
        return folder

    @property
    def run(self) -> Run:
        return read_run(self.record)

    def steps(self, rank: int) -> list[object]:
        return list(read_steps(self.record, rank)) if self.records.exists() and any(self.records.iterdir()) else []

    def processes(self) -> set[int]:
        """All that this command line started and that still runs, whoever its parent is now."""
        found = set()
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and self.mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.add(int(name))
            except OSError:
                continue
        return found


@pytest.fixture
def type_it(tmp_path: Path) -> Iterator[Callable[..., Typed]]:
    """Types `paceline run -n 2 ...`, and checks afterwards that nothing is left of it."""
    commands: list[Typed] = []
    before = shared_memory()

    def type_it(*arguments: str, verb: str = "run", fault: str = "pass", loaders: int = 0, path: str = "") -> Typed:
        (tmp_path / "train.py").write_text(TRAIN.format(fault=fault, loaders=loaders))
        mark = f"paceline-test-{uuid.uuid4()}"
        pythonpath = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH", ""))))
        with open(tmp_path / "out.txt", "wb") as out, open(tmp_path / "err.txt", "wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "paceline", verb, *arguments],
                cwd=tmp_path,
                env={**os.environ, "PACELINE_TEST_MARK": mark, "TMPDIR": str(tmp_path), "PYTHONPATH": pythonpath},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # As in a terminal: a shell's background job ignores SIGINT, and so would what it starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        commands.append(Typed(process, tmp_path, mark))
        return commands[-1]

    yield type_it
    for command in commands:
        command.end(kill=True)
        command.until(lambda command=command: not command.processes())
    deadline = time.monotonic() + 60
    while (left := shared_memory() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not [path for path in tmp_path.rglob("*") if path.is_socket() or path.is_fifo()]


TypeIt = Callable[..., Typed]


@pytest.mark.slow  # tests/launch/test_failures.py kills a worker, too
def test_a_worker_killed_in_mid_epoch_stops_the_run(type_it: TypeIt) -> None:
    command = type_it("-n", "2", "train.py", loaders=1)
    run = command.until_in_mid_epoch()
    os.kill(run.workers[1].pid, signal.SIGKILL)
    command.until(lambda: not any(Path(f"/proc/{worker.pid}").exists() for worker in run.workers))
    code, _, err = command.end()
    assert code == 128 + signal.SIGKILL
    assert f"Worker 1 on {run.workers[1].host} was killed by SIGKILL" in err
    assert "Traceback" not in err
    outcome = command.run.outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.failed_rank) == (code, 1)
    assert command.steps(0)


@pytest.mark.slow
def test_a_worker_that_raises_stops_the_run(type_it: TypeIt) -> None:
    command = type_it(
        "-n", "2", "train.py", fault="if step == 5 and of_this_process().rank == 1: raise ValueError('bad luck')"
    )
    code, out, err = command.end()
    assert code == 1
    assert "Worker 1 on " in err
    assert err.count("\nValueError: bad luck") == 1
    assert "\nfailed: worker 1 raised ValueError: bad luck\n" in err
    assert err.count("Traceback") == 1
    assert "paceline/" not in err.split("Traceback")[1].split("ValueError: bad luck\n")[0]
    assert out == ""


@pytest.mark.slow
def test_every_worker_raising_is_shown_once(type_it: TypeIt) -> None:
    code, out, err = type_it("-n", "2", "train.py", fault="if step == 5: raise ValueError('bad luck')").end()
    assert code == 1
    assert (out + err).count("\nValueError: bad luck") == 1
    assert "Worker 0 on " in err


@pytest.mark.slow
def test_an_exit_code_is_passed_on(type_it: TypeIt) -> None:
    code, _, err = type_it("-n", "2", "train.py", fault="if step == 5: sys.exit(3)").end()
    assert code == 3
    assert "Traceback" not in err


@pytest.mark.slow  # tests/launch/test_stall.py looks at the report; this at how it is shown
def test_a_worker_in_an_endless_loop_is_named_with_its_line(type_it: TypeIt) -> None:
    fault = "while step == 5 and of_this_process().rank == 1: sum(range(1000))"
    command = type_it("-n", "2", "--stall-warning", "2", "train.py", fault=fault)
    # The report ends with rank 1's stack.
    command.until(lambda: "while step == 5 and" in command.err.read_text())
    command.process.terminate()
    code, _, err = command.end()
    assert code == 143
    report = err[err.rindex("Stalled:") :]
    assert "Missing: worker 1." in report
    assert "worker 1 on " in report
    assert "step 5" in report
    assert 'train.py", line ' in report[report.index("\nworker 1:") :]


WRITES = "open('checkpoint.txt', 'a').close()"  # on ranks above 0 into a scratch folder


@pytest.mark.parametrize("loaders", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_workers_end_when_the_launcher_is_killed(type_it: TypeIt, tmp_path: Path, loaders: int) -> None:
    command = type_it("-n", "2", "train.py", loaders=loaders, fault=WRITES)
    command.until_in_mid_epoch()
    command.process.kill()
    command.until(lambda: not command.processes())
    run = command.run
    assert run.outcome is None
    assert command.steps(0)
    assert not (command.record / "scratch").exists()
    assert not list(tmp_path.glob("*pl-*"))


@pytest.mark.slow
def test_what_a_killed_run_left_is_removed_by_the_next(type_it: TypeIt, tmp_path: Path) -> None:
    command = type_it("-n", "2", "train.py", fault=WRITES)
    run = command.until_in_mid_epoch()
    [left] = tmp_path.glob("pl-*")
    record = command.record
    # Launcher and zygote die at once: nobody is left to tidy up.
    zygote = parent_of(run.workers[0].pid)
    os.kill(zygote, signal.SIGSTOP)
    command.process.kill()
    command.process.wait(60)
    os.kill(zygote, signal.SIGKILL)
    command.until(lambda: not command.processes())
    assert left.exists()
    assert (record / "scratch").exists()
    other = type_it("-n", "1", "--record", "others", "--steps", "1", "train.py")
    code, _, err = other.end()
    assert code == 0
    assert err.count(f"Removed the temporary files of a run that was killed: {left}") == 1
    assert not left.exists()
    assert not (record / "scratch").exists()
    assert read_run(record).outcome is None


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Imported by every Python process: in the zygote, the second worker stops itself as soon as it is forked.
FREEZE = """
import os, signal, sys
if "paceline.launch.zygote.process" in sys.orig_argv:
    forked = []
    def stop():
        if len(forked) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
    os.register_at_fork(before=lambda: forked.append(1), after_in_child=stop)
"""


@pytest.mark.slow
def test_a_worker_frozen_at_its_fork_is_named_and_ends_the_run(type_it: TypeIt, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FREEZE)
    limits = ("--stall-warning", "3", "--stall-abort", "6")
    code, _, err = type_it("-n", "2", *limits, "train.py", path=str(tmp_path / "site")).end()
    assert code == 1
    found = re.search(r"Stalled: worker ([01]) waited", err)  # the zygote may have forked for its own check, too
    assert found is not None, err
    assert "waits in start-up: connecting all workers" in err
    assert "is frozen (stopped by a signal; not heard of since it was started" in err
    assert "type: kill -CONT " in err
    assert f"Worker {1 - int(found[1])} on " in err[err.index("--stall-abort") - 200 :]


@pytest.mark.slow  # test_verbs.py stops a series by Ctrl-C
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_series_and_leaves_a_record(type_it: TypeIt, number: int, code: int) -> None:
    command = type_it("-n", "2", "--steps", "1000000", "train.py", verb="scale")
    command.until(lambda: command.records.exists() and any(command.records.glob("*/trials/*/steps.rank1.jsonl")))
    command.process.send_signal(number)
    assert command.end()[0] == code
    outcome = command.run.outcome
    assert outcome is not None
    assert (outcome.interrupted, outcome.exit_code) == (True, code)


@pytest.mark.slow
def test_the_forking_process_killed_ends_the_run(type_it: TypeIt) -> None:
    command = type_it("-n", "2", "train.py")
    run = command.until_in_mid_epoch()
    os.kill(parent_of(run.workers[0].pid), signal.SIGKILL)
    code, _, err = command.end()
    assert code == 1
    assert "was killed by SIGKILL" in err
    assert "Traceback" not in err


@pytest.mark.slow  # test_verbs.py stops a series by SIGINT, tests/launch/test_bounded_ends.py a run by SIGTERM
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_every_worker_and_leaves_a_record(type_it: TypeIt, number: int, code: int) -> None:
    command = type_it("-n", "2", "train.py", loaders=1)
    command.until_in_mid_epoch()
    command.process.send_signal(number)
    assert command.end()[0] == code
    outcome = command.run.outcome
    assert outcome is not None
    assert outcome.interrupted
    assert outcome.exit_code == code
    assert outcome.steps > 3


@pytest.mark.slow  # tests/launch/test_launch.py interrupts such a script, too
def test_a_script_may_handle_the_interrupt(type_it: TypeIt) -> None:
    handle = "signal.signal(signal.SIGINT, lambda *_: (print('saved', flush=True), sys.exit()))"
    command = type_it("-n", "2", "train.py", fault=f"if step == 0: {handle}")
    command.until_in_mid_epoch()
    command.process.send_signal(signal.SIGINT)
    code, out, err = command.end()
    assert code == 130
    assert out == "saved\n"
    assert "Ctrl-C again" in err


def test_an_interrupt_before_the_workers_start_ends_it_all_the_same(type_it: TypeIt) -> None:
    command = type_it("-n", "2", "train.py")
    command.until(lambda: command.records.exists() and any(command.records.glob("*/run.json")))
    command.process.send_signal(signal.SIGINT)
    assert command.end()[0] == 130


def test_what_cannot_be_run_is_said_at_once(typist: Typist, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(fault="pass", loaders=0))
    (tmp_path / "file").touch()
    for arguments, said, advice in [
        (("-n", "2", "nowhere.py"), "'nowhere.py' cannot be run", "path of a Python file"),
        (("-n", "0", "train.py"), "-n 0", "-n 1"),
        (("-n", "1000", "train.py"), "-n 1000", "--oversubscribe"),
        (("-n", "2", "--record", "file", "train.py"), "cannot be written", "--record"),
        (("-n", "2", "--record", "/proc/here", "train.py"), "cannot be written", "--record"),
    ]:
        typed = typist.type(tmp_path, "run", *arguments)
        assert typed.returncode not in (0, 130), arguments
        assert said in typed.stderr
        assert advice in typed.stderr
        assert "Traceback" not in typed.stderr
        assert typed.stdout == ""
        assert not (tmp_path / "paceline-runs").exists()
