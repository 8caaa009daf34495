"""When a ZeroMQ connection was made anew: what was on its way over the old one is lost, and ZeroMQ does not tell.

Does not import torch, because the launcher imports this module, too.
"""

from __future__ import annotations

from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message


class Connections:
    """The connections of a socket that connects to one place. Used by the thread that uses the socket."""

    def __init__(self, socket: Any) -> None:
        """Before the socket connects."""
        self._socket, self._made = socket, 0
        self._monitor: Any = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def were_renewed(self) -> bool:
        """Whether another connection than the first was made since the last call. Never waits."""
        before = self._made
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._made += 1
        return self._made > max(before, 1)

    def close(self) -> None:
        """Before the socket is closed."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
