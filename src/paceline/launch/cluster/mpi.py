"""Under mpirun: rank 0 controls the run, the first process of each other host joins it, all others wait for its end.

On one host the processes meet at a socket in a private folder. On several, mpi4py tells all hosts where rank 0 listens,
and the secret of a rendezvous (`rendezvous.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from pathlib import Path

from paceline.errors import LaunchError
from paceline.launch.cluster import facts
from paceline.settings import MpiProcess

_LONGEST = 1024  # bytes of what rank 0 tells the other hosts
_PATIENCE = 10.0  # seconds for the other processes to come, at the end of the run


class Followers:
    """The side of the first process of a host. Those that wait need no thread: the kernel keeps their connections."""

    def __init__(self, process: MpiProcess) -> None:
        self._count, self._folder = process.local_size - 1, _folder(process)
        self._listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        _check_owner(self._folder)
        (self._folder / "end").unlink(missing_ok=True)  # of a job with the same number, which was killed
        self._listener.bind(str(self._folder / "end"))
        self._listener.listen(max(self._count, 1))

    def finish(self, code: int, message: str = "") -> None:
        """Sends all of them home with the exit code of the run."""
        by = time.monotonic() + _PATIENCE
        for _ in range(self._count):
            self._listener.settimeout(max(by - time.monotonic(), 0.001))
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                break
            with connection, contextlib.suppress(OSError):
                connection.sendall(f"{code}\n".encode())
        (self._folder / "end").unlink(missing_ok=True)
        self._listener.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def follow(process: MpiProcess, wait: float) -> int:
    """Waits for the end of the run; returns its exit code. LaunchError if the first process of this host ends without
    one, or does not come within `wait` seconds."""
    by = time.monotonic() + wait
    with socket.socket(socket.AF_UNIX) as connection:
        while True:
            try:
                _check_owner(_folder(process))
                connection.connect(str(_folder(process) / "end"))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > by:
                    raise LaunchError(
                        f"The first MPI process of this host did not come within {wait:.0f} s.",
                        advice="Type `paceline run` directly after mpirun: mpirun -np 4 paceline run train.py",
                    ) from None
                time.sleep(0.05)
        try:
            told = connection.makefile().readline()
        except OSError:
            told = ""
    if not told.strip():
        raise LaunchError("The first MPI process of this host has ended too early.", advice="Look at its output.")
    return int(told)


def _folder(process: MpiProcess) -> Path:
    name = hashlib.sha256(process.job.encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"paceline-mpi-{os.getuid()}-{name}"


def _check_owner(folder: Path) -> None:
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise LaunchError(
            f"The folder {folder}, where the MPI processes of this host meet, is not private to this account.",
            advice=f"Type: rm -r {folder}",
        )


# -- several hosts ----------------------------------------------------------------------------------------------------


class Told:
    """What mpi4py tells all processes: where rank 0 listens, the secret, and the hosts."""

    def __init__(self, process: MpiProcess, port: int) -> None:
        """Every process of the job calls it. `port` is free on rank 0's host."""
        try:
            from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]
        except ImportError as error:
            raise LaunchError(
                f"mpirun has started processes on several hosts, and mpi4py cannot be used here ({error}).",
                advice="Install mpi4py, or type: mpirun … paceline run --rendezvous HOST:PORT --nodes N --secret FILE "
                "train.py",
            ) from None
        world = MPI.COMM_WORLD
        if world.Get_size() != process.size:
            raise LaunchError(
                f"mpirun has started {process.size} processes, and mpi4py sees {world.Get_size()}: it was built for "
                "another MPI.",
                advice="Install mpi4py for the MPI whose mpirun you type.",
            )
        text = bytearray(_LONGEST)
        if process.rank == 0:
            addresses = [each.address for each in facts.interfaces()]
            said = " ".join([secrets.token_hex(32), str(port), *addresses, "127.0.0.1"]).encode()[:_LONGEST]
            text[: len(said)] = said
        world.Bcast([text, MPI.BYTE], root=0)  # bytes: nothing is unpickled
        first = bytearray([process.local_rank == 0])
        all_first = bytearray(process.size)
        world.Allgather([first, MPI.BYTE], [all_first, MPI.BYTE])
        MPI.Finalize()
        self.secret, told_port, *self.addresses = bytes(text).rstrip(b"\0").decode().split()
        self.port, self.nodes = int(told_port), sum(all_first)
        self.node = sum(all_first[: process.rank])

    def reachable(self, wait: float) -> str:
        """The first address of rank 0's host at which it listens."""
        by = time.monotonic() + wait
        while time.monotonic() < by:
            failures = facts.connect_all([("0.0.0.0", address, self.port) for address in self.addresses])
            for address, failure in zip(self.addresses, failures, strict=True):
                if not failure:
                    return address
            time.sleep(0.1)
        raise LaunchError(
            f"This host cannot connect to port {self.port} of rank 0's host ({', '.join(self.addresses)}).",
            advice="Open the network between the hosts.",
        )
