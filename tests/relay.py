"""A way between two sockets that breaks when it is told to."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading

RESET = struct.pack("ii", 1, 0)  # a socket that is closed with it sends a reset


class Relay:
    """Passes bytes on to a port of this host; the next that come after `break_off` are lost, and the connection with
    them."""

    def __init__(self, target: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.target, self.broken = self._listener.getsockname()[1], target, 0
        self._breaks, self._over = "", threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def break_off(self, *, back: bool = False) -> None:
        """`back`: the next bytes that go back to whoever has connected."""
        self._breaks = "back" if back else "there"

    @property
    def is_to_break(self) -> bool:
        """Whether the bytes that `break_off` waits for have not come yet."""
        return bool(self._breaks)

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(20)
        self._listener.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            if select.select([self._listener], [], [], 0.02)[0]:
                self._threads.append(threading.Thread(target=self._pass_on, args=(self._listener.accept()[0],)))
                self._threads[-1].start()

    def _pass_on(self, sender: socket.socket) -> None:
        with contextlib.suppress(OSError), sender, socket.create_connection(("127.0.0.1", self.target)) as receiver:
            other = {sender: receiver, receiver: sender}
            while not self._over.is_set():
                for ready in select.select([sender, receiver], [], [], 0.02)[0]:
                    if not (data := ready.recv(65536)):
                        return
                    if self._breaks == ("there" if ready is sender else "back"):
                        self._breaks, self.broken = "", self.broken + 1
                        for end in (sender, receiver):
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        return
                    other[ready].sendall(data)
