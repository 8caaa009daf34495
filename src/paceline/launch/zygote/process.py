"""The zygote process: `python -m paceline.launch.zygote.process FD`, started only by `zygote.handle.Zygote`.

The zygote imports the modules that workers need, forks workers when the launcher asks, and reports how each worker
ended. It leaves no process behind: it reaps every process that a worker orphans, and kills its whole process tree when
the launcher is gone, even by SIGKILL. It starts no thread, uses no device and opens no ZeroMQ context, because none of
these survives a fork.
"""

from __future__ import annotations

import gc

# Importing torch creates a million objects and almost no garbage. Workers switch garbage collection on again.
gc.disable()

import ctypes  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from paceline.launch import messages, processes, scratch  # noqa: E402
from paceline.launch.worker import allocator  # noqa: E402

if TYPE_CHECKING:
    from paceline.launch.zygote.torch_check import TorchCheck
    from paceline.settings import RunSettings

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 0.5  # seconds between SIGTERM and SIGKILL to the processes that a worker left behind


class Nursery:
    """Forks workers, reaps processes that end, and kills processes that workers leave behind."""

    def __init__(self, launcher: socket.socket, torch_check: TorchCheck) -> None:
        self._launcher, self._torch_check = launcher, torch_check
        self._workers: dict[int, int] = {}  # process id → rank
        self._served = False
        self._scratch = self._record = ""  # folders of the present run
        self._held = -1  # descriptor of the lock on the scratch folder
        self._running = False  # between a Spawn and its Swept
        self._groups: set[int] = set()  # process groups that ended workers left behind
        self._sweep_at = 0.0  # when these groups are killed
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> tuple[messages.Spawn, messages.SpawnOrder, list[int]]:
        """Serves the launcher until the launcher is gone. Returns only in a forked worker, with that worker's order, so
        that the worker's stack stays as short as in plain Python."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._launcher, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            sweeping = self._groups or (self._running and not self._workers)
            ready = [fd for fd, _ in poll.poll(20 if sweeping else None)]
            if self._wake in ready:
                os.read(self._wake, 4096)
            self._reap()
            self._sweep()
            if self._launcher.fileno() in ready:
                try:
                    message, descriptors = messages.receive(self._launcher, messages.Spawn | messages.Signal)
                    if isinstance(message, messages.Spawn):
                        fork = self._spawn(message, descriptors)
                        if fork is not None:
                            return fork
                    else:
                        self._signal(message.number)
                except (EOFError, OSError):
                    self._abandon()

    def _spawn(
        self, spawn: messages.Spawn, descriptors: list[int]
    ) -> tuple[messages.Spawn, messages.SpawnOrder, list[int]] | None:
        if self._served or len(spawn.orders) > 1:
            _import_what_comes_late(spawn.orders[0].settings.run)
        if len(spawn.orders) > 1 and (why := self._torch_check.verdict()):
            advice = "Install a version of torch that Paceline knows, or run the script on one worker: -n 1."
            messages.send(self._launcher, messages.Broken(why, advice))
            os._exit(1)
        self._served, self._scratch = True, spawn.scratch
        self._record = spawn.orders[0].settings.record
        if self._held >= 0:  # the lock of the previous run
            os.close(self._held)
        self._held = scratch.hold(spawn.scratch)
        pids = []
        for number, order in enumerate(spawn.orders):
            try:
                pid = os.fork()
            except OSError as error:
                self._take_back(order.settings.rank, error, descriptors)
                return None
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for fd in (self._wake, self._woken):
                    os.close(fd)
                self._launcher.close()
                pipes, links = descriptors[: 2 * spawn.speakers], descriptors[2 * spawn.speakers :]
                own = [links[number], *pipes[2 * number :][:2]]
                for fd in descriptors:
                    if fd not in own:
                        os.close(fd)
                return spawn, order, own
            # Both the zygote and the worker call setpgid: the group then exists before any signal is sent to it.
            _quietly(os.setpgid, pid, pid)
            self._workers[pid] = order.settings.rank
            pids.append(pid)
        for fd in descriptors:
            os.close(fd)
        self._running = True
        messages.send(self._launcher, messages.Forked(pids))
        return None

    def _take_back(self, rank: int, error: OSError, descriptors: list[int]) -> None:
        """Kills the workers forked so far, because the next one could not be forked."""
        for fd in descriptors:
            os.close(fd)
        self._signal(signal.SIGKILL)
        self._running = True
        messages.send(self._launcher, messages.Unforked(rank, error.errno or 0))

    def _signal(self, number: int) -> None:
        for pid in self._workers:
            # As in a terminal, Ctrl-C reaches a worker's child processes too, and so does SIGKILL. Any other signal
            # goes to the worker alone, as with `kill`.
            if number == signal.SIGUSR1 and not processes.handles(pid, number):
                continue  # a script that does not know the signal would be killed by it
            send = os.killpg if number in (signal.SIGINT, signal.SIGKILL) else os.kill
            _quietly(send, pid, number)
            if number != signal.SIGKILL:
                _quietly(os.kill, pid, signal.SIGCONT)  # a frozen worker would not handle the signal

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._workers.pop(pid, None)
            if rank is None:
                continue
            messages.send(self._launcher, messages.Ended(rank, os.waitstatus_to_exitcode(status)))
            # Ends the worker's loader processes. Processes that clean up (multiprocessing's resource tracker unlinks
            # shared memory) ignore SIGTERM and end by themselves.
            if _quietly(os.killpg, pid, signal.SIGTERM):
                self._groups.add(pid)
            self._sweep_at = time.monotonic() + _PATIENCE

    def _sweep(self) -> None:
        late = time.monotonic() >= self._sweep_at
        if late:
            for group in self._groups:
                _quietly(os.killpg, group, signal.SIGKILL)
            self._groups.clear()
        if not self._running or self._workers:
            return
        # After the last worker ended, every remaining child process was left behind by a worker, whatever its group.
        orphans = _children()
        for pid in orphans:
            _quietly(os.kill, pid, signal.SIGKILL if late else signal.SIGTERM)
        if not orphans:
            self._running = False
            self._groups.clear()
            messages.send(self._launcher, messages.Swept())

    def _abandon(self) -> None:
        """The launcher is gone: kills every child process, and removes the run's temporary files."""
        while True:
            for pid in _children():
                _quietly(os.killpg, pid, signal.SIGKILL)
                _quietly(os.kill, pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                if self._scratch:
                    scratch.remove(self._scratch, self._record)
                os._exit(0)


def _import_what_comes_late(run: RunSettings) -> None:
    """Imports the run's strategy, and torch._dynamo, which otherwise each worker's first optimizer imports, in more
    than a second: the zygote imports both once, and the workers share the memory. For one worker in one run that gains
    nothing: a script without an optimizer would only start later."""
    import torch._dynamo  # noqa: F401

    from paceline.launch.worker import worker_main

    worker_main.prepare(run)
    gc.freeze()


def _children() -> list[int]:
    """The zygote's child processes, including those that ended and are not yet reaped."""
    me, found = os.getpid(), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The command's name, in brackets, may hold any character; the parent is the second field after
                    # the name.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            if parent == me:
                found.append(int(name))
    return found


def _quietly(call: Callable[[int, int], None], target: int, argument: int) -> bool:
    """Returns whether the call worked. A process that is gone is no error."""
    try:
        call(target, argument)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends the import of torch, and later a fork, silently
    for name, value in allocator.HUGE_PAGES.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    launcher = socket.socket(fileno=int(sys.argv[1]))
    launcher.set_inheritable(False)
    try:
        from paceline.launch.worker import process as worker_process
        from paceline.launch.zygote.torch_check import TorchCheck
    except ImportError as error:
        advice = "To see what is missing, type: paceline doctor"
        messages.send(launcher, messages.Broken(f"{type(error).__name__}: {error}", advice))
        os._exit(1)
    worker_process.settle_mathematics()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A parent that is killed after it has stopped this process (`processes.end_tree`) would leave it stopped for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    gc.freeze()
    parent, torch_check = os.getpid(), TorchCheck()
    try:
        messages.send(launcher, messages.Ready(worker_process.default_threads()))
    except OSError:
        os._exit(0)
    spawn, order, descriptors = Nursery(launcher, torch_check).serve()
    worker_process.leave(worker_process.work(spawn, order, descriptors, parent))  # from here on this is a worker


if __name__ == "__main__":
    main()
