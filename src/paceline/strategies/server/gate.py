"""Which peers that know a server's key may connect: those with the workers' key. All others are refused and logged.

ZeroMQ asks by its authentication (ZAP, RFC 27). A peer that does not know the server's key fails in the handshake
before: the server's `Door` counts it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

import zmq
from zmq.utils.z85 import decode as z85_decode

TOLD = 20  # refusals that are logged one by one


class Gate:
    """Made before the guarded socket is bound."""

    def __init__(self, guarded: zmq.Socket[bytes], worker_key: str, log: Callable[[str], None]) -> None:
        self.refused = 0
        self._key, self._log = z85_decode(worker_key.encode()), log
        self.questions = guarded.context.socket(zmq.REP)
        self.questions.setsockopt(zmq.LINGER, 0)
        self.questions.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answers one question of the authentication."""
        frames = self.questions.recv_multipart()
        # version, request, domain, address, identity, mechanism, credentials
        fine = len(frames) == 7 and frames[5] == b"CURVE" and hmac.compare_digest(frames[6], self._key)
        if not fine:
            address = frames[3].decode(errors="replace") if len(frames) > 3 else ""
            self._refuse(f"{_who(address)}: its key is not one of this run")
        request = frames[1] if len(frames) > 1 else b""
        code, text = (b"200", b"OK") if fine else (b"400", b"not a worker of this run")
        self.questions.send_multipart([b"1.0", request, code, text, b"worker" if fine else b"", b""])

    def close(self) -> None:
        self.questions.close()

    def _refuse(self, who: str) -> None:
        self.refused += 1
        if self.refused <= TOLD:
            more = " (further ones are only counted)" if self.refused == TOLD else ""
            self._log(f"refused a connection from {who}{more}")


def _who(address: str) -> str:
    """An address for people. Of a process on the same host, ZeroMQ tells user, group and process."""
    host, _, ids = address.partition(":")
    if host == "localhost" and ids.count(":") == 2:
        user, _, process = ids.split(":")
        return f"process {process} of user {user} on this host"
    return address
