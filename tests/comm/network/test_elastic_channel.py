"""Workers on several hosts that are killed at any message: the others get the same numbers, and go on."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import time
from collections.abc import Callable
from multiprocessing import Pipe
from typing import Any

import pytest
import torch

from paceline import settings
from paceline.comm.elastic_channel import SMALL, ElasticChannel, Letters
from paceline.comm.ending import CalledOff
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.settings import RunSettings, WorkerSettings
from paceline.wire.link import LinkSocket
from paceline.wire.store import LinkServer, left_key, left_text

PATIENCE = 60.0  # seconds: a fault, never a slow machine
WORTH = (1.0, 10.0, 100.0, 1000.0)  # what each worker adds: a sum tells who was there
Work = Callable[[Group], Any]
# Where a worker kills itself: before its message, or its request to the store, of this number.
Deaths = dict[int, tuple[str, int]]


def lasting(hosts: list[int], work: Work, deaths: Deaths | None = None) -> tuple[dict[int, Any], int]:
    """The answers of the workers that are left, by rank, and how often workers were lost. `hosts[r]` is the host of
    worker r. This process plays the launcher."""
    world, lost = len(hosts), 0
    with contextlib.ExitStack() as stack:
        links = LinkServer(world)
        stack.callback(links.close)
        live, pipes = {}, {}
        for rank in range(world):
            ours, its = Pipe()
            if not (pid := os.fork()):
                _become(rank, hosts, links.ends[rank].fileno(), its, work, (deaths or {}).get(rank))
            its.close()
            live[rank], pipes[rank] = pid, ours
        links.let_go()
        links.start()
        answers: dict[int, Any] = {}
        by = time.monotonic() + PATIENCE
        try:
            while live:
                ready = select.select([pipes[rank] for rank in live], [], [], max(0.0, by - time.monotonic()))[0]
                assert ready, f"workers {sorted(live)} wait for each other"
                for rank in [rank for rank in live if pipes[rank] in ready]:
                    with contextlib.suppress(EOFError):
                        answers[rank] = pickle.loads(pipes[rank].recv_bytes())
                    _, status = os.waitpid(live.pop(rank), 0)
                    pipes[rank].close()
                    if rank not in answers:
                        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, (rank, status)
                        lost += 1
                        links.put(left_key(lost), left_text(sorted(live)))
        finally:
            for pid in live.values():
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return answers, lost


def _become(rank: int, hosts: list[int], link: int, pipe: Any, work: Work, death: tuple[str, int] | None) -> None:
    code = 1
    try:
        torch.set_num_threads(1)
        if death is not None:
            _die_at(*death)
        LinkSocket(link).use()
        run = RunSettings(script="", workers=len(hosts), elastic=1)
        own = WorkerSettings(
            run=run, record="", rank=rank, world=len(hosts), host_rank=hosts[rank], address="127.0.0.1"
        )
        settings.use(own)
        group = Group(own)
        found = work(group)
        if isinstance(group._channel, ElasticChannel):
            group._channel._end()  # atexit, in a worker
        pipe.send_bytes(pickle.dumps(found))
        code = 0
    except BaseException as error:
        pipe.send_bytes(pickle.dumps(repr(error)))
    finally:
        os._exit(code)


def _die_at(what: str, number: int) -> None:
    kind: Any = Letters if what == "post" else LinkSocket
    plain, made = getattr(kind, what), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal made
        made += 1
        if made == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args, **kwargs)

    setattr(kind, what, counted)


def collectives(group: Group) -> list[Any]:
    """Sums in parts and whole ones, objects, and what the first worker has."""
    own, found = WORTH[group._settings.rank], list[Any]()
    for size in (1, SMALL, 3, 1000):
        summed = torch.full((size,), own, dtype=torch.float64)
        group.all_reduce(summed, "a sum")
        assert (summed == summed[0]).all()
        first = torch.full((3,), own)
        group.broadcast(first, "the first")
        found += [summed[0].item(), group.gather_objects(own, "objects"), first[0].item()]
    return found


def check(answers: dict[int, Any], left: set[int]) -> None:
    assert set(answers) == left
    assert len({repr(answer) for answer in answers.values()}) == 1, answers
    (found,) = {repr(answer): answer for answer in answers.values()}.values()
    assert isinstance(found, list), found
    sums, objects, firsts = found[0::3], found[1::3], found[2::3]
    assert sums == sorted(sums, reverse=True)  # who is lost stays lost
    assert sums[-1] >= sum(WORTH[rank] for rank in left)
    for total, there, first, later in zip(sums, objects, firsts, [*sums[1:], 0.0], strict=True):
        assert total >= sum(there) >= later
        assert first <= there[0]  # the broadcast came before


def test_nobody_is_lost() -> None:
    answers, lost = lasting([0, 0, 1], collectives)
    assert lost == 0
    assert answers[0] == answers[1] == answers[2] == [111.0, [1.0, 10.0, 100.0], 1.0] * 4


# A worker of three sends 2 letters in each half of 16 collectives, and 2 sums: 66 in all.
@pytest.mark.parametrize("number", [1, 2, 4, 8, 15, *(pytest.param(n, marks=pytest.mark.slow) for n in range(16, 67))])
def test_a_worker_is_killed_at_a_message(number: int) -> None:
    rank = number % 3
    answers, lost = lasting([0, 0, 1], collectives, {rank: ("post", number)})
    assert lost == 1
    check(answers, {0, 1, 2} - {rank})


@pytest.mark.parametrize(
    ("first", "second"),
    [(9, 16), (30, 18), *(pytest.param(6 * n, 11 + n, marks=pytest.mark.slow) for n in range(1, 13))],
)
def test_another_one_is_killed_while_the_others_form_a_group(first: int, second: int) -> None:
    """The second one dies at a request to the store: those of the connection come before, then those of a loss."""
    answers, lost = lasting([0, 1, 2, 0], collectives, {1: ("post", first), 2: ("ask", second)})
    assert lost == 2
    check(answers, {0, 3})


def ends_at_once(group: Group) -> str:
    group.all_reduce(torch.ones(4), "the only sum")
    return "ended"


@pytest.mark.parametrize("number", [3, 4])
def test_who_has_ended_has_told_how_far_it_came(number: int) -> None:
    """Worker 1 is killed before it has told all that it has everything; who has heard it may end at once."""
    answers, lost = lasting([0, 1, 2], ends_at_once, {1: ("post", number)})
    assert lost == 1
    assert answers == {0: "ended", 2: "ended"}


def test_a_worker_that_failed_answers_any_collective() -> None:
    def work(group: Group) -> list[Any]:
        group.guarded += 1
        said = ""
        try:
            if group.rank == 1:
                group.agree(failed=True)
            else:
                group.all_reduce(torch.ones(4), "a sum")
        except CalledOff:
            said = "called off"
        group.guarded -= 1
        group.begin_again()
        return group.gather_objects(said, "objects")

    answers, _ = lasting([0, 1, 2], work)
    assert list(answers.values()) == [["called off", "", "called off"]] * 3


def test_workers_that_differ_are_named() -> None:
    def work(group: Group) -> str:
        try:
            group.all_reduce(torch.ones(4 if group.rank else 5), "a sum")
        except PartedError as error:
            return error.message
        return ""

    answers, _ = lasting([0, 1], work)
    assert answers[0] == answers[1]
    assert "worker 0: a sum of 5 float32 at" in answers[0]
    assert "worker 1: a sum of 4 float32 at" in answers[0]
