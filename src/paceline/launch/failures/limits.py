"""Checks the limits of descriptors, processes, threads and memory before a run starts, and names them when they fail.

ZeroMQ aborts a process in which it cannot start a thread, and OpenBLAS interrupts such a process. So the launcher tries
to start threads first, where it can still report an error.
"""

from __future__ import annotations

import errno
import os
import resource
import threading

from paceline.comm.ending import innermost
from paceline.errors import LaunchError

_FILES = 48  # descriptors that the launcher and each worker have open, without those in _FILES_EACH
_FILES_EACH = 4  # further descriptors per worker of the run
_TASKS_FIRST = 8  # processes and threads that the zygote's and the launcher's imports start, mostly in OpenBLAS
_TASKS = 4  # threads of the launcher while workers run: ZeroMQ's
_TASKS_EACH = 4  # per worker at least: the process, and the control channel's three threads
_MOST_TRIED = 256  # threads to try at most: a limit above this number is no accident

_MORE_FILES = "Raise the limit in this shell: ulimit -n 4096"
_MORE_TASKS = (
    "Raise the limit in this shell (ulimit -u 4096), in a container its limit of pids, end some of your processes, or "
    "ask for fewer workers."
)
_MORE_MEMORY = "Free some memory, ask for fewer workers, or lift the limit in this shell: ulimit -v unlimited"
_FORKING = (
    "popen_fork.py",
    "popen_spawn_posix.py",
    "popen_forkserver.py",
    "subprocess.py",
    os.path.join("zygote", "process.py"),
)


def prove(workers: int) -> None:
    """Raises LaunchError if this number of workers exceeds the limit of descriptors, processes or threads. With 0,
    checks only what the launcher and the zygote need."""
    needed, (limit, _) = _FILES + _FILES_EACH * workers, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise LaunchError(
            f"{_run_of(workers)} takes {needed} open files in each process, and the limit is {limit} (ulimit -n).",
            advice=f"Raise the limit in this shell: ulimit -n {max(1024, needed)}",
        )
    tasks = min(_TASKS + _TASKS_EACH * workers, _MOST_TRIED) if workers else _TASKS_FIRST
    started = _threads(tasks)
    if started < tasks:
        raise LaunchError(
            f"{_run_of(workers)} takes {tasks} more processes and threads, and only {started} could be started "
            f"({_task_limit()}).",
            advice=_MORE_TASKS,
        )


def shortage(error: BaseException) -> tuple[str, str] | None:
    """The resource that ran out and what to type; None if the error is not about a shortage."""
    number, text = getattr(error, "errno", None), str(error)
    if number in (errno.EMFILE, errno.ENFILE) or (isinstance(error, RuntimeError) and "Too many open files" in text):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"No more files can be opened: {text} (the limit is {limit}: ulimit -n).", _MORE_FILES
    forking = number == errno.EAGAIN and (innermost(error.__traceback__) or "").endswith(_FORKING)
    if forking or (isinstance(error, RuntimeError) and "can't start new thread" in text):
        return f"No more processes or threads can be started: {text} ({_task_limit()}).", _MORE_TASKS
    if number == errno.ENOMEM:
        return f"The machine gives this process no more memory: {text}.", _MORE_MEMORY
    return None


def unforked(rank: int, number: int) -> LaunchError:
    """The error for a worker that could not be forked. `number` is the errno."""
    found = f"Worker {rank} could not be started: {os.strerror(number)} ({errno.errorcode.get(number, number)})"
    if number == errno.ENOMEM:
        return LaunchError(f"{found}: there is not enough memory for another process.", advice=_MORE_MEMORY)
    return LaunchError(f"{found}: {_task_limit()}.", advice=_MORE_TASKS)


def _run_of(workers: int) -> str:
    if workers == 0:
        return "Starting workers"
    return f"A run on {workers} worker{'s' if workers > 1 else ''}"


def _task_limit() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return "no limit is set: ulimit -u" if limit == resource.RLIM_INFINITY else f"the limit is {limit}: ulimit -u"


def _threads(count: int) -> int:
    """How many threads can be started, up to `count`. Only a try tells: the limits of the user, of the control group
    and of the machine all apply, and other processes count, too."""
    over, started = threading.Event(), list[threading.Thread]()
    try:
        for _ in range(count):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass
    finally:
        over.set()
        for thread in started:
            thread.join()
    return len(started)
