"""The kernel says which account is at the other end of a connection within the host."""

from __future__ import annotations

import os
import pwd
import socket
import threading

import pytest
import torch.distributed as dist

from paceline.comm.gloo import gloo_group
from paceline.comm.link import loopback
from paceline.errors import LaunchError


def test_our_own_connections_are_no_strangers() -> None:
    before = loopback.own_sockets()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()[:2]) as there:
        with server.accept()[0]:
            assert there.fileno() > 0
            assert loopback.strangers(before) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="to act as a second account takes root")
def test_a_connection_of_another_account_is_found() -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = loopback.own_sockets()
        child = os.fork()
        if child == 0:
            os.setgid(nobody)
            os.setuid(nobody)
            with socket.create_connection(server.getsockname()[:2]):
                threading.Event().wait()
        with server.accept()[0]:
            assert loopback.strangers(before) == [nobody]
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_group_over_gloo_is_refused_where_a_stranger_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "strangers", lambda before: [65534])
    with pytest.raises(LaunchError, match="uid 65534"):
        gloo_group(dist.HashStore(), 0, 1)
