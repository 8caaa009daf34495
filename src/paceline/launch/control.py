"""The control channel: one authenticated ZeroMQ socket between the launcher and each of its workers.

Workers send heartbeats, notices and failures; the launcher asks for their stacks. The worker's side runs in a thread of
its own, so that it answers while the script is stuck in a collective.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from paceline.comm.pulse import Pulse
from paceline.errors import RecordError
from paceline.launch import messages
from paceline.launch.failures import texts
from paceline.launch.failures.tracebacks import stack_of
from paceline.settings import WorkerSettings
from paceline.wire.channel import Connection, Keys, Listener, Loop, frames_of, joined
from paceline.wire.door import strangers

THREAD = "paceline-control"


class ControlChannel:
    """The launcher's side: a socket in the run's temporary folder, which other accounts cannot enter."""

    def __init__(self, folder: Path) -> None:
        # A socket's path has 107 bytes at most. The folder's descriptor makes the path short, wherever the folder is.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._listener = Listener(Keys.make(), path=f"ipc:///proc/{os.getpid()}/fd/{self._folder}/control")
        self.socket, self.address = self._listener.socket, self._listener.place
        self.key, self.token = self._listener.access
        self._decoder = msgspec.json.Decoder(messages.FromWorker)
        self._peers: dict[int, bytes] = {}

    def receive(self) -> Iterator[tuple[int, messages.FromWorkers]]:
        """Yields all messages that have arrived, each with its rank; never waits."""
        for peer, frames in self._listener.receive():
            try:
                envelope = self._decoder.decode(joined(frames))
            except msgspec.DecodeError:
                continue
            self._peers[envelope.rank] = peer
            yield envelope.rank, envelope.message

    def ask_where(self, rank: int) -> bool:
        """Asks a worker for its stack; False if the worker has not sent a message yet."""
        peer = self._peers.get(rank)
        return peer is not None and self._listener.send(peer, [msgspec.json.encode(messages.Where())])

    def close(self) -> None:
        self._listener.close()
        os.close(self._folder)


class Control:
    """The worker's side. Any thread may call `notice` and `failed`; only the channel's own thread uses the socket."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.pulse = Pulse(self.notice)
        self._loop = Loop[messages.FromWorkers](
            THREAD,
            self._connect,
            turn=self._answer,
            beat=lambda: self._send(self._beat()),
            send=self._send,
            end=self._end,
        )
        self.pulse.on_idle = lambda mod, text: self._loop.post(messages.Said(texts.shortened(text), mod, idle=True))

    def start(self) -> None:
        self._loop.start()

    def notice(self, text: str, mod: str = "") -> None:
        self._loop.post(messages.Said(texts.shortened(text), mod))

    def failed(self, failure: messages.Failed) -> None:
        self._loop.post(failure)

    def unrecorded(self, error: RecordError) -> None:
        """The record can no longer be written: `record.stopping`."""
        self._loop.post(messages.Unrecorded(error.message, error.advice))

    def close(self) -> None:
        """Sends the remaining messages and a last heartbeat. Waits 2 s at most, even if the launcher is gone."""
        self._loop.close(timeout=2)

    def _connect(self) -> Iterable[Any]:
        settings = self._settings
        self._connection = Connection(settings.control, settings.control_key, settings.token)
        return (self._connection.socket,)

    def _answer(self) -> None:
        for _ in self._connection.receive():
            main = threading.main_thread().ident
            frame = sys._current_frames().get(main) if main is not None else None
            stack = stack_of(frame) if frame is not None else "its main thread has ended"
            self._send(messages.Stack(texts.shortened(stack)))

    def _send(self, message: messages.FromWorkers) -> None:
        envelope = messages.FromWorker(self._settings.rank, message)
        try:
            body = msgspec.json.encode(envelope)
        except UnicodeEncodeError:  # a lone surrogate, usually from a file name that is not valid UTF-8
            body = msgspec.json.encode(texts.cleaned(msgspec.to_builtins(envelope)))
        self._connection.send(frames_of(body))

    def _end(self) -> None:
        self._send(self._beat(last=True))
        self._connection.close(linger=1000)

    def _beat(self, *, last: bool = False) -> messages.Beat:
        pulse = self.pulse
        waiting, since = pulse.waiting, pulse.waiting_since
        return messages.Beat(
            step=pulse.step,
            seam=pulse.seam,
            waiting=waiting,
            waited=time.monotonic() - since if waiting else 0.0,
            collectives=pulse.collectives,
            view=pulse.view,
            latest=pulse.latest,
            passed=pulse.passed,
            asking=pulse.asking,
            checking=pulse.long_check,
            evaluated_after=pulse.evaluated_after,
            speaks=pulse.speaks,
            strangers=strangers(),
            last=last,
        )
