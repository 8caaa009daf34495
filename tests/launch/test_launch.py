"""What a script finds when it is started on several workers, and what its author sees."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launched import Launched, Play
from rich.console import Console

from paceline.errors import RecordError, UsageError
from paceline.launch import Event, Output, Zygote, launch
from paceline.record import read_run
from paceline.reports.figure_text import figures_document
from paceline.reports.profile import time_table
from paceline.reports.terminal import show_table
from paceline.settings import RunSettings
from paceline.tables.figures import read_figures


def test_every_worker_runs_the_script_and_rank_0_has_the_voice(play: Play) -> None:
    launched = play(
        """
        import sys
        from paceline.settings import of_this_process
        own = of_this_process()
        print("out", own.rank, own.world, sys.argv[1:])
        print("err", own.rank, file=sys.stderr)
        """,
        arguments=("--lr", "0.1"),
    )
    assert launched.outcome.exit_code == 0
    assert launched.output() == "out 0 2 ['--lr', '0.1']\n"
    assert launched.output("stderr") == "err 0\n"
    assert sorted(launched.log(0).splitlines()) == ["err 0", "out 0 2 ['--lr', '0.1']"]
    assert launched.log(1).splitlines() == ["out 1 2 ['--lr', '0.1']", "err 1"]


def test_a_script_is_main_as_in_plain_python(play: Play) -> None:
    launched = play(
        """
        import sys
        print(__name__, __file__ == sys.argv[0], __spec__, sys.modules["__main__"].__dict__ is globals(), sys.path[0])
        """,
        workers=1,
    )
    folder = launched.record.parent
    assert launched.output() == f"__main__ True None True {folder}\n"


def test_processes_that_a_script_starts_work(play: Play) -> None:
    launched = play(
        """
        import multiprocessing, subprocess, sys, torch
        from torch.utils.data import DataLoader, TensorDataset

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            data = TensorDataset(torch.arange(6.0))
            print([batch[0].sum().item() for batch in DataLoader(data, batch_size=3, num_workers=1)])
            for method in ("fork", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(double, [1, 2]))
            print(subprocess.run([sys.executable, "-c", "print(7)"], capture_output=True, text=True).stdout.strip())
        """,
        workers=1,
    )
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.output() == "[3.0, 12.0]\nfork [2, 4]\nforkserver [2, 4]\n7\n"


def test_a_worker_ends_as_python_does(play: Play) -> None:
    launched = play(
        """
        import atexit, threading, time
        class Late:
            def __del__(self):
                print("deleted", flush=True)
        late = Late()
        left_open = open(__file__ + ".out", "w")
        left_open.write("written")
        atexit.register(print, "at exit")
        said = threading.Event()
        threading.Thread(target=lambda: (said.wait(), time.sleep(0.2), print("thread done"))).start()
        print("script done")
        said.set()
        """,
        workers=1,
    )
    assert launched.output().splitlines() == ["script done", "thread done", "at exit", "deleted"]
    assert (launched.record.parent / "train.py.out").read_text() == "written"


def test_a_script_with_its_own_process_group_joins_the_same_store(play: Play) -> None:
    launched = play(
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(x)
        print(x.item())
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(3):
            model(x).backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
        workers=3,
        launch_as="torchrun",
    )
    assert launched.outcome.exit_code == 0, launched.outcome.message
    assert launched.output() == "6.0\n"
    found = read_figures(launched.record)
    assert (found.steps, found.split) == (3, False), "forward, backward and communication are not measured"
    assert figures_document(found)["step"]["forward"] is None
    assert figures_document(found)["samples_per_s"] is None
    shown = Console(file=io.StringIO(), width=80)
    show_table(shown, time_table(found.measured))
    assert shown.file.getvalue().count("not measured") == 3


def test_a_lone_worker_may_make_its_own_process_group(play: Play) -> None:
    launched = play(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        print(dist.get_world_size())
        dist.destroy_process_group()
        """,
        workers=1,
        launch_as="torchrun",
    )
    assert launched.output() == "1\n", launched.outcome.message


def test_cores_and_threads_are_shared_out_and_written_down(play: Play) -> None:
    script = """
        import os, torch
        print(sorted(os.sched_getaffinity(0)), torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])
        """
    launched = play(script, workers=2)
    workers = read_run(launched.record).workers
    for worker in workers:
        text = f"{worker.cores or sorted(os.sched_getaffinity(0))} {worker.threads} {worker.threads}"
        assert launched.log(worker.rank).strip() == text
        assert worker.environment["OMP_NUM_THREADS"] == str(worker.threads)
    launched = play(script, workers=1, threads=3)
    assert launched.output().strip() == f"{sorted(os.sched_getaffinity(0))} 3 3", (
        "more threads than a share: no pinning"
    )


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_a_step_reuses_the_memory_of_the_step_before(play: Play) -> None:
    launched = play(
        """
        import resource, torch

        def step():
            activations = [torch.empty(3_000_000).fill_(1) for _ in range(8)]

        for _ in range(5):  # the heap grows to its size
            step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        """,
        workers=1,
    )
    pages = 10 * 8 * 3_000_000 * 4 // 4096
    assert int(launched.output()) < pages / 4


def test_the_record_says_what_was_run(play: Play) -> None:
    launched = play("print('hello')", workers=2, seed=7)
    run = read_run(launched.record)
    assert run.verb == "run"
    assert run.settings["seed"] == 7
    assert run.versions["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert "torch" in run.versions
    assert run.topology["cores"]
    assert [worker.rank for worker in run.workers] == [0, 1]
    assert run.outcome == launched.outcome


def test_many_runs_share_one_zygote(play: Play) -> None:
    for workers in (1, 3, 2):
        launched = play("from paceline.settings import of_this_process as own; print(own().world)", workers=workers)
        assert launched.output() == f"{workers}\n"
        assert not (launched.record / f"log.rank{workers}.txt").exists(), "a record is of one run"


def test_output_comes_as_it_is_written(play: Play) -> None:
    """The script waits for a file that appears only once its first line was seen."""

    def answer(launched: Launched, event: Event) -> None:
        if "first" in launched.output():
            (launched.record.parent / "seen").touch()

    launched = play(
        """
        import os, time
        print("first")
        while not os.path.exists(os.path.join(os.path.dirname(__file__), "seen")):
            time.sleep(0.01)
        print("second")
        """,
        workers=1,
        on_event=answer,
    )
    assert launched.output() == "first\nsecond\n"


def test_much_output_arrives_whole(play: Play) -> None:
    launched = play("import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 300_000)", workers=1)
    assert launched.output() == "x" * 3_000_000
    assert launched.output("stderr") == "y" * 300_000
    assert len(launched.log(0)) == 3_300_000


def test_the_launcher_itself_does_without_torch() -> None:
    code = "import sys, paceline.launch, paceline.record, paceline.topology; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_is_refused(play: Play, workers: int) -> None:
    with pytest.raises(UsageError, match=f"-n {workers}: ") as caught:
        play("", workers=workers)
    assert "-n 1" in caught.value.advice


def test_too_many_workers_are_asked_back(play: Play) -> None:
    with pytest.raises(UsageError, match="-n 1000: ") as caught:
        play("", workers=1000)
    assert "--oversubscribe" in caught.value.advice


def test_insisting_on_many_workers_works(play: Play) -> None:
    cores = len(os.sched_getaffinity(0))
    if cores > 4:
        pytest.skip("would start too many processes here")
    launched = play("print('hello')", workers=4 * cores + 1, oversubscribe=True)
    assert launched.outcome.exit_code == 0, launched.outcome.message


def test_a_missing_script_is_refused_and_leaves_no_folder(zygote: Zygote, tmp_path: Path) -> None:
    for name in ("nowhere.py", str(tmp_path)):
        with pytest.raises(UsageError, match="cannot be run"):
            launch(RunSettings(script=name), zygote=zygote, record=tmp_path / "record", on_event=print)
    with pytest.raises(UsageError, match="no module 'nowhere_at_all'"):
        launch(
            RunSettings(script="nowhere_at_all.train", module=True),
            zygote=zygote,
            record=tmp_path / "record",
            on_event=print,
        )
    assert not (tmp_path / "record").exists()


def test_a_record_that_cannot_be_written_is_refused(play: Play, tmp_path: Path) -> None:
    (tmp_path / "record").touch()
    with pytest.raises(RecordError, match="cannot be written"):
        play("print('hello')")


def test_a_run_in_another_thread_works(play: Play) -> None:
    """Without signals then: Python allows handlers in the main thread only."""
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(play, "print('hello')", workers=1).result().output() == "hello\n"


def test_a_script_may_handle_the_interrupt(play: Play) -> None:
    sent = []  # a second interrupt would kill the workers

    def interrupt(launched: Launched, event: Event) -> None:
        if launched.output() == "here\n" and not sent:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    launched = play(
        """
        import os, signal, sys, time, torch
        signal.signal(signal.SIGINT, lambda *_: (print("saved", flush=True), sys.exit()))
        torch.nn.Linear(4, 1)(torch.ones(8, 4)).sum().backward()  # waits for the other worker
        os.write(1, b"here\\n")  # in one piece: the handler prints, too
        while True:  # a signal that comes just before a sleep is handled only after it
            time.sleep(0.1)
        """,
        on_event=interrupt,
    )
    assert (launched.outcome.exit_code, launched.outcome.interrupted) == (128 + signal.SIGINT, True)
    assert launched.output() == "here\nsaved\n"
    assert launched.log(1).endswith("saved\n")
    assert any("Ctrl-C again" in notice for notice in launched.notices)


def test_a_caller_that_breaks_down_leaves_no_worker(play: Play) -> None:
    def break_down(launched: Launched, event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play("import time; print('hello'); time.sleep(1000)", on_event=break_down)
    assert play("print('again')").output() == "again\n", "and the zygote goes on serving"


def test_a_strategy_is_imported_once_for_all_workers(play: Play) -> None:
    """The zygote imports it before it forks: its memory is out of every worker's garbage collection, and shared."""
    launched = play(
        """
        import gc, sys
        names = vars(sys.modules["paceline.strategies.zero1"])
        print(any(thing is names for thing in gc.get_objects()))
        """,
        strategy="zero1",
    )
    assert launched.output() == launched.log(1) == "False\n"


def test_a_scripts_finalizers_run_at_its_end_and_torchs_do_not(play: Play) -> None:
    """torch has hundreds, which take operators out of a process that ends anyway."""
    launched = play(
        """
        import functools, sys, weakref
        def unregister():
            print("an operator")
        unregister.__module__ = "torch.library"
        weakref.finalize(sys, unregister)
        weakref.finalize(sys, functools.partial(print, "the script"))
        """,
    )
    assert launched.output() == launched.log(1) == "the script\n"


def test_a_terminal_that_does_not_read_holds_nobody_up(play: Play, tmp_path: Path) -> None:
    """Whoever shows what the script prints reads nothing until the script has ended. More than what waits in memory."""
    end = tmp_path / "end"
    read: list[bool] = []

    def show(launched: Launched, event: Event) -> None:
        if isinstance(event, Output) and not read:
            by = time.monotonic() + 60
            while not end.exists() and time.monotonic() < by:
                time.sleep(0.01)
            read.append(end.exists())

    launched = play(
        f"""
        import sys
        for number in range(80):
            print(number, "x" * 100_000)
            print(number, file=sys.stderr)
        open({str(end)!r}, "w").close()
        """,
        workers=1,
        on_event=show,
    )
    assert read == [True]
    assert launched.output() == "".join(f"{number} {'x' * 100_000}\n" for number in range(80))
    assert launched.output("stderr").split() == [str(number) for number in range(80)]


def test_an_error_of_what_shows_a_run_ends_the_run(play: Play) -> None:
    def show(launched: Launched, event: Event) -> None:
        raise OverflowError("the terminal is on fire")

    with pytest.raises(OverflowError, match="on fire"):
        play("print(1)\nimport threading\nthreading.Event().wait(600)", workers=1, on_event=show)
