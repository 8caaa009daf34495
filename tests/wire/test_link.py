"""The store that workers meet in: what torch's own stores do, over a socket that has no address."""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.group import Group
from paceline.errors import PeerLostError
from paceline.wire import frames
from paceline.wire.link import LinkSocket, LinkStore, link_of_this_process, within
from paceline.wire.store import LinkServer

SOON = datetime.timedelta(milliseconds=20)


@pytest.fixture
def links() -> Iterator[list[LinkSocket]]:
    with LinkServer(2) as server:
        yield [LinkSocket(os.dup(end.fileno())) for end in server.ends]


@pytest.fixture
def stores(links: list[LinkSocket]) -> list[LinkStore]:
    return [LinkStore(link) for link in links]


def test_what_one_sets_the_other_gets(stores: list[LinkStore]) -> None:
    a, b = stores
    a.set("text", "hello")
    a.set("bytes", b"\0\xff")
    assert (b.get("text"), b.get("bytes")) == (b"hello", b"\0\xff")
    assert b.check(["text", "bytes"])
    assert not b.check(["text", "other"])


KEYS = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["", "x", "12"])
CALLS = st.one_of(
    st.tuples(st.just("set"), KEYS, VALUES),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("compare_set"), KEYS, VALUES, VALUES),
    st.tuples(st.just("check"), st.lists(KEYS)),
    st.tuples(st.just("delete_key"), KEYS),
    st.tuples(st.just("add"), st.just("number"), st.integers(-3, 3)),
)


@given(calls=st.lists(CALLS, max_size=12))
def test_it_answers_as_torchs_own_store_does(calls: list[tuple[Any, ...]]) -> None:
    reference = dist.HashStore()
    reference.set_timeout(SOON)
    with LinkServer(1) as server:
        ours = LinkStore(LinkSocket(os.dup(server.ends[0].fileno())))
        ours.set_timeout(SOON)
        for name, *args in calls:
            assert outcome(getattr(ours, name), args) == outcome(getattr(reference, name), args), (name, args)


def outcome(call: Callable[..., Any], args: list[Any]) -> Any:
    try:
        return call(*args)
    except RuntimeError:
        return "raises"


def test_parts_of_a_store_do_not_see_each_other(stores: list[LinkStore]) -> None:
    a, b = stores
    within(a, "rows").set("key", "1")
    within(a, "sums").set("key", "2")
    assert within(b, "rows").get("key") == b"1"
    assert within(b, "sums").num_keys() == 1
    assert b.num_keys() == 2


def test_a_descriptor_is_handed_over_and_let_go(stores: list[LinkStore]) -> None:
    a, b = stores
    read, write = os.pipe()
    held = len(os.listdir("/proc/self/fd"))
    a.give("pipe", write)
    os.close(write)
    taken = b.take("pipe")
    a.delete_key("pipe")
    os.write(taken, b"through")
    os.close(taken)
    assert os.read(read, 10) == b"through"
    assert os.read(read, 10) == b"", "somebody still holds the other end"
    assert len(os.listdir("/proc/self/fd")) == held - 1
    os.close(read)


def test_waiting_ends_at_the_timeout(stores: list[LinkStore]) -> None:
    with pytest.raises(dist.DistStoreError, match="never"):
        stores[0].wait(["never"], SOON)


def test_a_launcher_that_is_gone_is_a_lost_peer() -> None:
    server = LinkServer(1)
    store = LinkStore(LinkSocket(os.dup(server.ends[0].fileno())))
    server.start()
    server.close()
    with pytest.raises(PeerLostError, match="launcher"):
        store.get("anything")


def test_the_launcher_closes_though_a_fork_of_it_lives_on() -> None:
    server = LinkServer(1)
    server.start()
    child = os.fork()
    if child == 0:
        signal.pause()
    closing = threading.Thread(target=server.close)
    closing.start()
    closing.join(30)
    ended = not closing.is_alive()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ended


def test_a_process_that_a_worker_forks_cannot_speak_for_it(links: list[LinkSocket]) -> None:
    child = os.fork()
    if child == 0:
        try:
            LinkStore(links[0]).set("key", "of a child")
        except PeerLostError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert not LinkStore(links[1]).check(["key"])


def test_many_descriptors_travel_with_one_message() -> None:
    import socket

    ours, its = socket.socketpair()
    with ours, its, open(os.devnull) as file:
        frames.send(ours, b"body", [file.fileno()] * 600)
        body, came = frames.receive(its)
        assert (body, len(set(came))) == (b"body", 600)
        for descriptor in came:
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)


def of_torch(group: Group) -> Any:
    """Torch's own groups, of one kind after the other, in the store."""
    link = link_of_this_process()
    assert link is not None
    dist.init_process_group("gloo", store=LinkStore(link, "torch/"), rank=group.rank, world_size=group.world)
    some = dist.new_group([0, 1])
    found: list[Any] = [None] * group.world
    dist.all_gather_object(found, group.rank * 10)
    if group.rank < 2:
        dist.barrier(some)
    dist.destroy_process_group()
    return found


def test_torchs_own_groups_meet_in_it(pool: Any) -> None:
    from pool import alone

    with alone(3) as workers:
        assert workers.run(of_torch) == [[0, 10, 20]] * 3


def test_a_request_that_cannot_be_answered_is_refused_and_the_next_one_is_answered(stores: list[LinkStore]) -> None:
    a, b = stores
    a.set("name", "text")
    with pytest.raises(ValueError, match="1 cannot be added to the key 'name': it holds b'text'"):
        a.add("name", 1)
    a.set("large", str(2**64))
    with pytest.raises(ValueError, match="store of the run"):
        b.add("large", 1)  # more than a message holds
    assert b.get("name") == b"text"
