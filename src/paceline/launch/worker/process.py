"""A worker process, from the fork to the end of its script.

The worker is a fork of the zygote, so this module sets by hand what a fresh Python process takes from its environment:
threads, standard streams, signals.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import io
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from typing import Any, NoReturn, TextIO

import torch

from paceline import threads
from paceline.launch import messages
from paceline.launch.control import THREAD, Control
from paceline.launch.failures.tracebacks import describe, whole_text
from paceline.launch.worker import allocator, offspring
from paceline.launch.worker.worker_main import perform
from paceline.record import stopping
from paceline.record.folder import log_path
from paceline.record.logs import LogFile, open_log
from paceline.script import memory
from paceline.settings import LAUNCHER_VARIABLES, SCHEDULER_VARIABLES, WorkerSettings, use
from paceline.wire.link import LinkSocket

_PR_SET_PDEATHSIG = 1


def default_threads() -> int:
    """Torch's default number of threads."""
    return torch.get_num_threads()


def settle_mathematics() -> None:
    """Initialises MKL's vector functions. Called once, by one thread, before workers are forked. MKL inspects the
    processor at the first call of a vector function (sqrt, exp, log, tanh, …). If several threads make that first call
    together, as they do on a large tensor, some threads may get low-precision functions: in 1 to 2 % of processes, the
    first result was wrong in the fourth digit."""
    torch.sqrt(torch.ones(1, device="cpu"))


def work(spawn: messages.Spawn, order: messages.SpawnOrder, descriptors: list[int], parent: int) -> int | str | None:
    """Runs the script as one worker; returns the argument for sys.exit. `descriptors` are the worker's end of its link
    to the launcher's store and, on rank 0, the pipes for its standard output and error."""
    _leave_the_zygote(parent)
    # multiprocessing keeps its socket files here. There is no public name for this setting, and by default
    # multiprocessing leaves a folder behind whenever a worker is killed.
    multiprocessing.current_process()._config["tempdir"] = spawn.scratch  # type: ignore[attr-defined]
    offspring.hush()
    settings = order.settings
    use(settings)
    link, *pipes = descriptors
    LinkSocket(link).use()
    _take_share(settings, order.environment)
    control = Control(settings)
    threads.on_death = lambda thread, error: _lose_thread(thread, error, control)
    try:
        control.start()
    except RuntimeError as error:  # no more threads: the launcher then reads the error from the log's last lines
        _redirect(settings, pipes)
        return f"paceline: {whole_text(error)}"
    # atexit runs the handler that is registered first as the last one: the launcher gets heartbeats until then.
    atexit.register(control.close)
    stopping.listen(control.unrecorded)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # until here, SIGINT ended this process silently
        _redirect(settings, pipes)
        os.chdir(spawn.folder)
        if settings.run.memory_limit:
            memory.limit(settings.run.memory_limit)
        control.pulse.on_failure = lambda error: control.failed(describe(error))
        perform(settings, control.pulse, spawn.scratch)
    except SystemExit as end:
        return end.code
    except BaseException as error:
        return _fail(error, settings, control)
    return 0


def leave(code: object) -> NoReturn:
    """Ends as a Python process does, with a script's SystemExit code: joins threads, runs atexit handlers, and drops
    the script's variables, which flushes its files. The interpreter is not finalised: that would copy every memory
    page shared with the zygote, and cost each worker half a second. For the same reason torch's libraries of operators
    do not unregister themselves, operator by operator, from a process that ends."""
    threading._shutdown()  # type: ignore[attr-defined]
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if (known := finalizer.peek()) is not None and getattr(known[1], "__module__", "") == "torch.library":
            finalizer.detach()
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
        os._exit(1)  # the zygote ended before prctl: the kernel would never send the signal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.enable()


def _take_share(settings: WorkerSettings, environment: dict[str, str]) -> None:
    for name in (
        *LAUNCHER_VARIABLES,
        *SCHEDULER_VARIABLES,
    ):  # of the shell that Paceline was started from, such as a torchrun worker's
        os.environ.pop(name, None)
    os.environ.update(environment)
    if settings.cores:
        try:
            os.sched_setaffinity(0, settings.cores)
        except OSError:
            pass  # these cores are no longer available: the worker is slower, but correct
    # Even a call with the present number of threads would switch off MKL's dynamic choice of threads.
    if torch.get_num_threads() != settings.threads:
        torch.set_num_threads(settings.threads)
    if not allocator.is_users():
        memory.keep_freed(settings.local_world)


def _redirect(settings: WorkerSettings, pipes: list[int]) -> None:
    """Rank 0 writes to the launcher's pipes and keeps its standard input; every other rank writes to its log (in an
    elastic run, to pipes of its own), and its child processes find no input that they could take from rank 0's."""
    place = settings.record, settings.rank
    out, err = pipes or [open_log(*place)] * 2
    if settings.rank and not os.isatty(0):  # a terminal also tells its size; what is typed goes to rank 0: `terminal`
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for descriptor in {out, err}:
        os.close(descriptor)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = io.FileIO(descriptor, "w", closefd=False) if pipes else LogFile(descriptor, log_path(*place))
        reopened = _reopened(getattr(sys, name), file)
        setattr(sys, name, reopened)
        setattr(sys, f"__{name}__", reopened)
    # A crash inside a C library then leaves a Python stack in the log's last lines.
    faulthandler.enable()


def _reopened(stream: TextIO | None, raw: Any) -> Any:
    """The stream anew, flushed after each line. The zygote's object remembers of its own target, perhaps a file, that
    one can seek in it; a library that wraps the stream (click) would then fail on a pipe."""
    if stream is None:  # closed by the shell: print does nothing
        return None
    raw.name = stream.name
    buffer = io.BufferedWriter(raw)
    reopened: Any = io.TextIOWrapper(buffer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)
    reopened.mode = "w"  # as Python sets it
    return reopened


def _fail(error: BaseException, settings: WorkerSettings, control: Control) -> int:
    """Reports the error to the launcher, which shows it once for all workers, and to this worker's log."""
    # A DataLoader whose process was killed raises in its SIGCHLD handler: that must not interrupt this report.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if settings.run.memory_limit:
        memory.lift()
    control.failed(describe(error))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    log = open_log(settings.record, settings.rank)
    try:
        _write_all(log, whole_text(error))
        if sys.excepthook is not sys.__excepthook__ and not _is_torchs(sys.excepthook):
            _run_hook(error, log)
    except OSError:
        pass
    finally:
        os.close(log)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _lose_thread(thread: threading.Thread, error: BaseException, control: Control) -> None:
    """A thread of Paceline's has died, without which others may wait for ever: ends the run."""
    os.write(2, f"paceline: the thread {thread.name!r} has ended:\n{whole_text(error)}\n".encode())
    if thread.name == THREAD:
        os._exit(1)  # nothing can be told any more: the launcher reads the log's last lines
    control.failed(describe(error))


def _write_all(log: int, text: str) -> None:
    rest = text.encode(errors="backslashreplace") + b"\n"
    while rest:
        rest = rest[os.write(log, rest) :]


def _is_torchs(hook: object) -> bool:
    """Whether torch set the hook: init_process_group sets one that prints the traceback again, with the rank before
    each line."""
    return getattr(hook, "__module__", "").startswith("torch.")


def _run_hook(error: BaseException, log: int) -> None:
    """Runs the script's own excepthook (a tracker that marks its run as crashed) as plain Python does. The hook's
    output goes to the log, because the launcher already shows the failure on the terminal."""
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
