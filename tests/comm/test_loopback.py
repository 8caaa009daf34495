"""The kernel says which account is at the other end of a connection within the host."""

from __future__ import annotations

import os
import pwd
import socket
import threading

import pytest
import torch.distributed as dist

from paceline.comm.network import gloo
from paceline.comm.network.gloo import gloo_group
from paceline.errors import LaunchError


def test_our_own_connections_are_no_strangers() -> None:
    before = gloo.own_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as there:
        with server.accept()[0]:
            assert there.fileno() > 0
            assert gloo.strangers(before) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as a second account takes root")
@pytest.mark.parametrize("says", [b"", b"\0" * 8])
def test_a_connection_of_another_account_is_found_once_it_has_said_something(says: bytes) -> None:
    """A silent one is nobody's peer: it must not end a run."""
    nobody = pwd.getpwnam("nobody").pw_uid
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = gloo.own_sockets()
        child = os.fork()
        if child == 0:
            os.setgid(nobody)
            os.setuid(nobody)
            with socket.create_connection(server.getsockname()[:2]) as connection:
                connection.sendall(says)
                threading.Event().wait()
        with server.accept()[0] as accepted:
            if says:
                assert accepted.recv(8, socket.MSG_PEEK | socket.MSG_WAITALL) == says
            assert gloo.strangers(before) == [nobody] * bool(says)
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_group_over_gloo_is_refused_where_a_stranger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gloo, "strangers", lambda before: [65534])
    for address, advice in (("127.0.0.1", "Leave out --backend gloo"), (None, "--interface NAME")):
        with pytest.raises(LaunchError, match="uid 65534") as caught:
            gloo_group(dist.HashStore(), 0, 1, address=address)
        assert advice in caught.value.advice
