"""The control channel: one authenticated ZeroMQ socket between the launcher and each of its workers.

Workers send heartbeats, notices and failures; the launcher asks for their stacks. The channel is encrypted with a key
pair made for the run, and every message carries the run's token: a message with another token is dropped. The worker's
side runs in a separate thread, so that it answers while the script is stuck in a collective.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec
import zmq

from paceline import threads
from paceline.comm.pulse import BEAT, Pulse
from paceline.errors import RecordError
from paceline.launch import messages
from paceline.launch.failures import texts
from paceline.launch.failures.tracebacks import stack_of
from paceline.settings import WorkerSettings
from paceline.wire.channel import guard, is_token, strangers, trust

_LARGEST = 1 << 20  # most bytes of a message


class ControlChannel:
    """The launcher's side: a socket in the run's temporary folder, which other accounts cannot enter."""

    def __init__(self, folder: Path) -> None:
        public, secret = zmq.curve_keypair()
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self.socket = self._context.socket(zmq.ROUTER)
        guard(self.socket, secret, largest=_LARGEST)
        # A socket's path has 107 bytes at most. The folder's descriptor makes the path short, wherever the folder is.
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.address = f"ipc:///proc/{os.getpid()}/fd/{self._folder}/control"
        self.socket.bind(self.address)
        self.key = public.decode()
        self.token = secrets.token_urlsafe(24)
        self._decoder = msgspec.json.Decoder(messages.FromWorker)
        self._peers: dict[int, bytes] = {}

    def receive(self) -> Iterator[tuple[int, messages.FromWorkers]]:
        """Yields all messages that have arrived, each with its rank; never waits."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                envelope = self._decoder.decode(frames[-1])
            except msgspec.DecodeError:
                continue
            if is_token(envelope.token, self.token):
                self._peers[envelope.rank] = frames[0]
                yield envelope.rank, envelope.message

    def ask_where(self, rank: int) -> bool:
        """Asks a worker for its stack; False if the worker has not sent a message yet."""
        peer = self._peers.get(rank)
        if peer is None:
            return False
        question = msgspec.json.encode(messages.ToWorker(self.token, messages.Where()))
        try:
            self.socket.send_multipart([peer, question], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        self.socket.close()
        self._context.term()
        os.close(self._folder)


class Control:
    """The worker's side. Any thread may call `notice` and `failed`; only the channel's own thread uses the socket."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self.pulse = Pulse(self.notice)
        self.pulse.on_idle = lambda mod, text: self._post(messages.Said(texts.shortened(text), mod, idle=True))
        self._outbox: deque[messages.Said | messages.Failed | messages.Unrecorded] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = False
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        self.thread = threads.start("paceline-control", self._serve)

    def notice(self, text: str, mod: str = "") -> None:
        self._post(messages.Said(texts.shortened(text), mod))

    def failed(self, failure: messages.Failed) -> None:
        self._post(failure)

    def unrecorded(self, error: RecordError) -> None:
        """The record can no longer be written: `record.stopping`."""
        self._post(messages.Unrecorded(error.message, error.advice))

    def close(self) -> None:
        """Sends the remaining messages and a last heartbeat. Waits 2 s at most, even if the launcher is gone."""
        self._over = True
        os.eventfd_write(self._bell, 1)
        assert self.thread is not None
        self.thread.join(timeout=2)
        if not self.thread.is_alive():
            os.close(self._bell)

    def _post(self, message: messages.Said | messages.Failed | messages.Unrecorded) -> None:
        if not self._over:
            self._outbox.append(message)
            os.eventfd_write(self._bell, 1)

    def _serve(self) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        trust(socket, self._settings.control_key)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(self._settings.control)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._bell, zmq.POLLIN)
        decoder = msgspec.json.Decoder(messages.ToWorker)
        next_beat = 0.0
        while True:
            while self._outbox:
                self._send(socket, self._outbox.popleft())
            if self._over:
                self._send(socket, self._beat(last=True))
                break
            now = time.monotonic()
            if now >= next_beat:
                self._send(socket, self._beat())
                next_beat = now + BEAT
            ready = dict(poller.poll(int(1000 * max(0.0, next_beat - time.monotonic()))))
            if self._bell in ready:
                os.eventfd_read(self._bell)
            if socket in ready:
                self._answer(socket, decoder)
        socket.close()
        context.term()

    def _answer(self, socket: zmq.Socket[bytes], decoder: msgspec.json.Decoder[messages.ToWorker]) -> None:
        try:
            envelope = decoder.decode(socket.recv())
        except msgspec.DecodeError:
            return
        if is_token(envelope.token, self._settings.token):
            main = threading.main_thread().ident
            frame = sys._current_frames().get(main) if main is not None else None
            stack = stack_of(frame) if frame is not None else "its main thread has ended"
            self._send(socket, messages.Stack(texts.shortened(stack)))

    def _send(self, socket: zmq.Socket[bytes], message: messages.FromWorkers) -> None:
        envelope = messages.FromWorker(self._settings.token, self._settings.rank, message)
        try:
            body = msgspec.json.encode(envelope)
        except UnicodeEncodeError:  # a lone surrogate, usually from a file name that is not valid UTF-8
            body = msgspec.json.encode(texts.cleaned(msgspec.to_builtins(envelope)))
        socket.send(body, zmq.NOBLOCK)

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
