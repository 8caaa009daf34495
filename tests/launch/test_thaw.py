"""A worker that was frozen: when it is thawed, it first finds out whether the others have gone on without it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.comm.members import Members
from paceline.launch.worker import thaw
from paceline.wire.link import LinkSocket, LinkStore
from paceline.wire.store import LinkServer, left_key, left_text

PATIENCE = 20.0  # seconds


def writes(members: Members, file: int) -> None:
    os.write(file, b".")


def asks(members: Members, file: int) -> None:
    """A request to the store is under way nearly always."""
    members._has("a key")
    os.write(file, b".")


@contextlib.contextmanager
def worker(links: LinkServer, path: Path, turn: Callable[[Members, int], None]) -> Iterator[int]:
    """The process id of worker 1 of 2, which repeats something until it ends."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    if not (pid := os.fork()):
        try:
            for ours in links._ours.values():
                ours.close()
            for end in (links._over, links._end):
                os.close(end)
            members = Members(LinkStore(LinkSocket(os.dup(links.ends[1].fileno()))), 1, 2)
            thaw.watch(members)
            while True:
                turn(members, file)
        finally:
            os._exit(3)
    os.close(file)
    links.let_go()
    links.start()
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def until(so: Callable[[], bool]) -> None:
    by = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < by
        time.sleep(0.001)


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


@pytest.fixture
def links() -> Iterator[LinkServer]:
    found = LinkServer(2)
    yield found
    found.close()


@pytest.mark.parametrize("turn", [writes, asks])
def test_a_worker_that_was_given_up_ends_before_it_writes(
    links: LinkServer, tmp_path: Path, turn: Callable[[Members, int], None]
) -> None:
    path = tmp_path / "written"
    with worker(links, path, turn) as pid:
        until(lambda: path.stat().st_size > 5)
        freeze(pid)
        links.put(left_key(1), left_text([0]))
        size = path.stat().st_size
        os.kill(pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert path.stat().st_size - size <= 1  # a write that was under way


@pytest.mark.parametrize("turn", [writes, asks])
@pytest.mark.parametrize("left", [None, [1]])
def test_a_worker_that_is_still_needed_goes_on(
    links: LinkServer, tmp_path: Path, turn: Callable[[Members, int], None], left: list[int] | None
) -> None:
    path = tmp_path / "written"
    with worker(links, path, turn) as pid:
        for _ in range(5):
            freeze(pid)
            size = path.stat().st_size
            if left is not None:
                links.put(left_key(1), left_text(left))
            os.kill(pid, signal.SIGCONT)
            until(lambda size=size: path.stat().st_size > size + 5)  # type: ignore[misc]


def test_a_worker_whose_launcher_is_gone_ends(tmp_path: Path) -> None:
    path, links = tmp_path / "written", LinkServer(2)
    with worker(links, path, writes) as pid:
        until(lambda: path.stat().st_size > 5)
        freeze(pid)
        links.close()
        os.kill(pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
