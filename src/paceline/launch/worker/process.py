"""A worker, from the fork to the end of its script.

Runs in a fork of the zygote, so what a fresh Python process would have got from its environment (threads,
standard streams, signals) is set here, by hand.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
from typing import NoReturn

import torch

from paceline.comm.link.client import Link
from paceline.launch import messages
from paceline.launch.control import Control
from paceline.launch.failures.tracebacks import describe, whole_text
from paceline.launch.worker import offspring
from paceline.launch.worker.worker_main import perform
from paceline.record.folder import open_log
from paceline.script import memory_limit
from paceline.settings import WorkerSettings

_PR_SET_PDEATHSIG = 1


def default_threads() -> int:
    """How many threads torch would use in a process of its own."""
    return torch.get_num_threads()


def settle_mathematics() -> None:
    """Called once, by one thread, before workers are forked. MKL looks at the processor when one of its vector
    functions (sqrt, exp, log, tanh, …) is first called. Where several threads make that call together, as they do on a
    large tensor, some of them now and then get functions of a few digits: in one or two of a hundred processes a first
    result is wrong in the fourth digit."""
    torch.sqrt(torch.ones(1))


def work(spawn: messages.Spawn, order: messages.Order, descriptors: list[int], parent: int) -> int | str | None:
    """Runs the script as one worker; returns what to give to sys.exit. `descriptors` are its end of the link to the
    launcher's store and, of rank 0, the pipes for its standard output and error."""
    _leave_the_zygote(parent)
    # Where multiprocessing keeps its socket files. It has no public name for this, and would leave a folder of
    # its own behind whenever a worker is killed.
    multiprocessing.current_process()._config["tempdir"] = spawn.scratch  # type: ignore[attr-defined]
    offspring.hush()
    settings = order.settings
    link, *pipes = descriptors
    Link(link).use()
    _take_share(settings, order.environment)
    control = Control(settings)
    try:
        control.start()
    except RuntimeError as error:  # no more threads: then the launcher hears of it by the log's last lines
        _redirect(settings, pipes)
        return f"paceline: {whole_text(error)}"
    # The first handler to be registered is the last to run: until then the launcher hears of us.
    atexit.register(control.close)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # until now it just ended this process
        _redirect(settings, pipes)
        os.chdir(spawn.folder)
        if settings.run.memory_limit:
            memory_limit.limit(settings.run.memory_limit)
        control.pulse.on_failure = lambda error: control.failed(describe(error))
        perform(settings, control.pulse)
    except SystemExit as end:
        return end.code
    except BaseException as error:
        return _fail(error, settings, control)
    return 0


def leave(code: object) -> NoReturn:
    """Ends as a Python process does, with a script's SystemExit code: threads are joined, atexit handlers run, what the
    script's variables hold is let go and so flushed. But torch is not taken apart: that would copy every page that the
    zygote shares, for half a second of each worker."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(0 if code is None else code & 0xFF if isinstance(code, int) else 1)


def _leave_the_zygote(parent: int) -> None:
    try:
        os.setpgid(0, 0)
    except PermissionError:
        pass  # the zygote was faster
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the zygote was gone before we could ask to be told
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.enable()


def _take_share(settings: WorkerSettings, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    if settings.cores:
        try:
            os.sched_setaffinity(0, settings.cores)
        except OSError:
            pass  # cores that were taken from us meanwhile: slower, not wrong
    # Asked for what it already has, torch would still switch off choices that MKL makes by itself.
    if torch.get_num_threads() != settings.threads:
        torch.set_num_threads(settings.threads)


def _redirect(settings: WorkerSettings, pipes: list[int]) -> None:
    """One voice: rank 0 speaks through the launcher and keeps its standard input; the others write to their
    log."""
    if pipes:
        out, err = pipes
    else:
        out = err = open_log(settings.record, settings.rank)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in {out, err}:
        os.close(descriptor)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # A crash inside a C library then leaves a Python stack in the log's last lines.
    faulthandler.enable()


def _fail(error: BaseException, settings: WorkerSettings, control: Control) -> int:
    """Tells the launcher, which shows it once for all workers; this worker's log gets its own copy."""
    # A DataLoader whose process was killed raises in a signal handler: not into this.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if settings.run.memory_limit:
        memory_limit.lift()
    control.failed(describe(error))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    try:
        log = open_log(settings.record, settings.rank)
    except Exception:
        log = os.open(os.devnull, os.O_WRONLY)
    try:
        _write_all(log, whole_text(error))
        if sys.excepthook is not sys.__excepthook__ and not _is_torchs(sys.excepthook):
            _run_hook(error, log)
    except OSError:
        pass
    finally:
        os.close(log)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _write_all(log: int, text: str) -> None:
    rest = text.encode(errors="backslashreplace") + b"\n"
    while rest:
        rest = rest[os.write(log, rest) :]


def _is_torchs(hook: object) -> bool:
    """init_process_group sets one that prints the traceback again, with the rank before each line."""
    return getattr(hook, "__module__", "").startswith("torch.")


def _run_hook(error: BaseException, log: int) -> None:
    """A script's own excepthook (a tracker that marks its run as crashed) runs as in plain Python; what it
    prints goes to the log, since the terminal gets the failure from the launcher."""
    saved = os.dup(2)
    os.dup2(log, 2)
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as another:
        _write_all(log, whole_text(another))
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
