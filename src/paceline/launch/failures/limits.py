"""Too few descriptors, processes or threads, too little memory: found before a run starts, and named where it fails.

ZeroMQ aborts the process that it cannot get a thread in, and OpenBLAS interrupts it: so it is tried out first, in the
launcher, where an error can still be told.
"""

from __future__ import annotations

import errno
import os
import resource
import threading

from paceline.comm.lost import innermost
from paceline.errors import LaunchError

_FILES = 48  # descriptors that the launcher and each worker have open besides those for each worker
_FILES_EACH = 4
_TASKS_FIRST = 8  # processes and threads of the zygote's and of the launcher's imports: OpenBLAS's, most of all
_TASKS = 4  # of the launcher while workers run: ZeroMQ's threads
_TASKS_EACH = 4  # of a worker at least: itself, and the control channel's three threads
_MOST_TRIED = 256  # threads: a machine that has room for these is not limited by accident

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
    """LaunchError where so many workers cannot get their descriptors, processes and threads. Also called with 0, for
    what comes before any worker."""
    needed, (limit, _) = _FILES + _FILES_EACH * workers, resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise LaunchError(
            f"{_said(workers)} takes {needed} open files in each process, and the limit is {limit} (ulimit -n).",
            advice=f"Raise the limit in this shell: ulimit -n {max(1024, needed)}",
        )
    tasks = min(_TASKS + _TASKS_EACH * workers, _MOST_TRIED) if workers else _TASKS_FIRST
    started = _threads(tasks)
    if started < tasks:
        raise LaunchError(
            f"{_said(workers)} takes {tasks} more processes and threads, and only {started} could be started "
            f"({_of_tasks()}).",
            advice=_MORE_TASKS,
        )


def shortage(error: BaseException) -> tuple[str, str] | None:
    """What has run out, and what to type, where that is what an error says; None where it is another error."""
    number, text = getattr(error, "errno", None), str(error)
    if number in (errno.EMFILE, errno.ENFILE) or (isinstance(error, RuntimeError) and "Too many open files" in text):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"No more files can be opened: {text} (the limit is {limit}: ulimit -n).", _MORE_FILES
    forking = number == errno.EAGAIN and (innermost(error.__traceback__) or "").endswith(_FORKING)
    if forking or (isinstance(error, RuntimeError) and "can't start new thread" in text):
        return f"No more processes or threads can be started: {text} ({_of_tasks()}).", _MORE_TASKS
    if number == errno.ENOMEM:
        return f"The machine gives this process no more memory: {text}.", _MORE_MEMORY
    return None


def unforked(rank: int, number: int) -> LaunchError:
    """The error to raise where a worker could not be forked."""
    found = f"Worker {rank} could not be started: {os.strerror(number)} ({errno.errorcode.get(number, number)})"
    if number == errno.ENOMEM:
        return LaunchError(f"{found}: there is not enough memory for another process.", advice=_MORE_MEMORY)
    return LaunchError(f"{found}: {_of_tasks()}.", advice=_MORE_TASKS)


def _said(workers: int) -> str:
    if workers == 0:
        return "Starting workers"
    return f"A run on {workers} worker{'s' if workers > 1 else ''}"


def _of_tasks() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    return "no limit is set: ulimit -u" if limit == resource.RLIM_INFINITY else f"the limit is {limit}: ulimit -u"


def _threads(count: int) -> int:
    """How many threads can be started, up to `count`. Trying is the only way to know: limits of the user, of a control
    group and of the machine all count, and others' processes too."""
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
