"""The side of a rendezvous that waits for a controller, starts an agent for it, and ends with the run's exit code."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from paceline.comm.pulse import BEAT, LOST
from paceline.errors import LaunchError
from paceline.launch.cluster.messages import Boot
from paceline.launch.cluster.process import ProcessAgent, agent_command
from paceline.launch.cluster.rendezvous import wire
from paceline.launch.cluster.rendezvous.asked import Asked
from paceline.launch.interrupts import exit_code_of
from paceline.wire.channel import frames_of, joined, trust

_PATIENT = 2.0  # seconds after which the wait for the controller is told of
_STRANGE = 5  # failed handshakes


class Member:
    """One host that joins. Only the main thread uses it."""

    def __init__(self, asked: Asked, tell: Callable[[str], None]) -> None:
        self._asked, self._tell, self._me = asked, tell, secrets.token_hex(8)
        self._agent: ProcessAgent | None = None
        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.DEALER)
        trust(self._socket, asked.keys.public.decode())
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is kept for a controller that is not there yet
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
        self._monitor: Any = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_CONNECTED
        )
        self._failed, self._connected = 0, False
        self._socket.connect(f"tcp://{asked.host}:{asked.port}")

    def serve(self) -> int:
        """Until the run is over; returns its exit code. LaunchError if there is no controller, or no longer."""
        try:
            return self._served()
        except KeyboardInterrupt as error:
            self._send(wire.Left(f"it was interrupted (exit code {exit_code_of(error)})"))
            raise
        finally:
            if self._agent is not None:
                self._agent.kill(5.0)
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close()
            self._context.term()

    def _served(self) -> int:
        decoder: msgspec.msgpack.Decoder[wire.ToMember] = msgspec.msgpack.Decoder(wire.ToMember)
        begun = time.monotonic()
        heard, beat_at, told, left = 0.0, 0.0, False, False
        while True:
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + BEAT
                self._send(wire.Here() if heard else self._join())
            if self._socket.poll(100):
                heard = time.monotonic()
                message = decoder.decode(joined(self._socket.recv_multipart()))
                if isinstance(message, wire.Over):
                    how = f": {message.message}" if message.message else f", with exit code {message.code}"
                    self._tell(f"the run has ended{how if message.message or message.code else ''}")
                    return message.code
                self._do(message)
            if self._agent is not None and not left and (why := self._agent.ended()) is not None:
                left = True
                self._send(wire.Left(why))
            if heard and time.monotonic() - heard > LOST:
                raise LaunchError(
                    f"The controller of the run, at {self._asked.place}, has not answered for {LOST:.0f} s.",
                    advice="Look at the output of the command there.",
                )
            if not heard:
                self._look(now - begun)
                if now - begun > _PATIENT and not told:
                    told = True
                    self._tell(f"waiting for the controller at {self._asked.place}")

    def _do(self, message: wire.ToMember) -> None:
        if isinstance(message, wire.Refused):
            raise LaunchError(message.message, advice=message.advice)
        if isinstance(message, wire.Start):
            # Each host runs the script in the folder where its own command was typed.
            boot = msgspec.structs.replace(msgspec.json.decode(message.boot, type=Boot), folder=os.getcwd())
            self._agent = ProcessAgent(agent_command(message.variables), msgspec.json.encode(boot))
            self._tell(f"this host has joined the run at {self._asked.place}")
        elif isinstance(message, wire.Stop) and self._agent is not None:
            self._agent.kill(message.patience)
            self._agent = None
            self._send(wire.Left("it was stopped"))

    def _join(self) -> wire.Join:
        asked = self._asked
        return wire.Join(host=asked.name, node=asked.node, workers=asked.own, asked=dict(asked.same))

    def _send(self, message: wire.Join | wire.Here | wire.Left) -> None:
        told = wire.FromMember(self._asked.keys.token, self._me, message)
        try:
            self._socket.send_multipart(frames_of(msgspec.msgpack.encode(told)), zmq.NOBLOCK)
        except zmq.Again:
            pass  # not connected (yet)

    def _look(self, waited: float) -> None:
        """Why there is no answer. Raises LaunchError when it is clear that there will be none."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            self._connected = self._connected or event == zmq.EVENT_CONNECTED
            self._failed += event != zmq.EVENT_CONNECTED
        place = self._asked.place
        if self._failed >= _STRANGE:
            raise LaunchError(
                f"A process listens at {place}, but not with the secret of this host.",
                advice="Copy the same secret to every host, or type another port.",
            )
        if waited > self._asked.wait:
            found = "nothing answers there" if not self._connected else "it accepts connections and does not answer"
            raise LaunchError(
                f"No controller at {place} within {self._asked.wait:.0f} s: {found}.",
                advice=f"Type the same command on {self._asked.host}, and look whether this host can connect to it.",
            )
