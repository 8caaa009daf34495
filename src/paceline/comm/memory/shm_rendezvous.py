"""Where the workers of one host meet: shared space, a signal from each to each, and what each has called.

A call is written down before its first signal, so that the first wait finds out whether the other one made the same
call. Who did not raises on both sides, with both places in the script.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.comm.call_site import script_line
from paceline.comm.called_off import CalledOff
from paceline.comm.memory import signals
from paceline.comm.memory.handover import forget, hand_over
from paceline.comm.memory.region import Peers, Region
from paceline.errors import PacelineError, PartedError, PeerLostError

SPIN = 300  # turns before sleeping: about a hundred microseconds
LINE = 64
TEXT = 1024  # bytes for a worker to say what it called
CALL = struct.Struct("<qqqqq")  # number, what, size, root, parts
CALLED_OFF = "called off"
OFF = zlib.crc32(f"{CALLED_OFF} {torch.uint8}".encode())
HEAR_OUT = 5.0  # seconds in which workers that have parted tell each other what they called


class Meeting:
    """`call`, then `signal` and `wait` for each peer, as often as the call needs; all do so in the same order."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world: int,
        space: int,
        *,
        names: list[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Every worker of the group; waits until all are there. `names` are the numbers by which people know them;
        without a `timeout` a peer that lives is waited for as long as it takes."""
        self.rank, self.world = rank, world
        self.site: Callable[[], str] = script_line  # of the call under way
        self.names, self._timeout = names or list(range(world)), timeout
        # Where workers share cores, turning round takes the core from the one that is waited for.
        self.spin = SPIN if world <= (os.cpu_count() or 1) else 0
        self._codes: dict[tuple[str, torch.dtype], int] = {}
        self._number, self._call = 0, b""
        self.said = ""  # what this worker waits for, in words
        self._unheard = [False] * world  # who has not been compared with in the call under way
        self._signals, self._taken = 0, [0] * world
        self._since, self._awaited = 0.0, 0
        self._broken: PacelineError | None = None
        self._lay(store, space)

    def _lay(self, store: Any, space: int) -> None:
        block = LINE * (self.world + 2) + TEXT  # of one worker: a signal from each, two calls, its words
        size = block * self.world + space
        if self.rank == 0:
            self._region = Region(size)
            for peer in range(self.world):
                for other in range(self.world):
                    signals.make(self._region.address + block * peer + LINE * other)
            handed = hand_over(store, 0, self.world, self._region.fd, timeout=self._timeout)
        else:
            handed = hand_over(store, self.rank, self.world, None, timeout=self._timeout)
            self._region = Region(size, fd=handed.memory)
        with torch.inference_mode(False):
            self.space = self._region.bytes[block * self.world :][:space]
        base, ranks = self._region.address, range(self.world)
        self._posts = [base + block * peer + LINE * self.rank for peer in ranks if peer != self.rank]
        self._waits = [base + block * self.rank + LINE * peer for peer in ranks]
        self._calls = [block * peer + LINE * self.world for peer in ranks]
        self._texts = [at + 2 * LINE for at in self._calls]
        self._peers = Peers(handed.processes)
        self.meet()
        self._region.close_door()
        if self.rank == 0:
            forget(store, self.world)
        self.meet()

    def meet(self, name: str = "meeting") -> None:
        """Returns when everybody is here."""
        self.call(name, torch.uint8, 0)
        self.signal()
        for peer in range(self.world):
            if peer != self.rank:
                self.wait(peer)
        self._unheard = [False] * self.world

    def gone(self) -> list[int]:
        """The workers that have ended."""
        return self._peers.gone()

    def call(self, name: str, dtype: torch.dtype, size: int, root: int = 0, parts: Sequence[int] = ()) -> None:
        """A collective begins. All must begin the same one, of the same dtype and size (and parts), and signal: one
        that was begun and not entered might be overwritten by the next before all have read it."""
        if self._broken is not None:
            raise self._broken
        code = self._codes.get((name, dtype))
        if code is None:
            code = self._codes[name, dtype] = zlib.crc32(f"{name} {dtype}".encode())
        self._number += 1
        uneven = zlib.crc32(str(parts).encode()) if parts and min(parts) != max(parts) else 0
        self._call, self.said = CALL.pack(self._number, code, size, root, uneven), name
        self._kind = (name, dtype, size, root, list(parts) if uneven else None)
        at = self._calls[self.rank] + LINE * (self._number & 1)
        self._region.memory[at : at + CALL.size] = self._call
        self._unheard = [True] * self.world

    def signal(self) -> None:
        """What this worker has written so far may be read."""
        self._signals += 1
        for address in self._posts:
            signals.post(address)

    def wait(self, peer: int) -> None:
        """Waits for that worker's signal."""
        address = self._waits[peer]
        if not signals.is_posted(address):
            self._since, self._awaited = time.monotonic(), peer
            signals.take(address, self.spin, self._look)
        self._taken[peer] += 1
        if self._unheard[peer]:
            self._unheard[peer] = False
            at = self._calls[peer] + LINE * (self._number & 1)
            if self._region.memory[at : at + CALL.size] != self._call:
                self._differ(peer)

    def _differ(self, peer: int) -> None:
        """A peer made another call: it has failed, or another one has, or the workers have parted."""
        until, unheard = time.monotonic() + HEAR_OUT, [p for p in range(self.world) if p != self.rank]
        while not self._is_off(peer):
            unheard = [p for p in unheard if self._unheard[p]]
            if not unheard or not signals.sleep(self._waits[unheard[0]], max(0.0, until - time.monotonic())):
                self._part()
            peer = unheard[0]
            self._taken[peer] += 1
            self._unheard[peer] = False
        self._hear_the_rest()
        raise CalledOff

    def _is_off(self, peer: int) -> bool:
        at = self._calls[peer] + LINE * (self._number & 1)
        return CALL.unpack(self._region.memory[at : at + CALL.size])[:2] == (self._number, OFF)

    def call_off(self) -> None:
        """This worker failed in work that all do together: it answers the call that its peers make next, and they
        raise `CalledOff`. Waits for all of them; whatever was exchanged in that call is lost."""
        self.call(CALLED_OFF, torch.uint8, 0)
        self.signal()
        self._hear_the_rest()

    def _hear_the_rest(self) -> None:
        """A call that was called off ends for everybody with its first signal."""
        for peer in range(self.world):
            if peer != self.rank and self._unheard[peer]:
                self._unheard[peer] = False
                self.wait(peer)

    def _look(self) -> None:
        """Still no signal. A worker that has ended and owes one will never send it."""
        for peer in self._peers.gone():
            if self._taken[peer] < self._signals and not signals.count(self._waits[peer]):
                self._broken = PeerLostError(
                    f"Worker {self.names[peer]} has ended, and worker {self.names[self.rank]} waits for it in "
                    f"{self.said} at {self.site()}."
                )
                raise self._broken
        if self._timeout is not None and time.monotonic() - self._since > self._timeout:
            self._broken = PeerLostError(
                f"Worker {self.names[self.rank]} has waited {self._timeout:.0f} s for worker "
                f"{self.names[self._awaited]} in {self.said} at {self.site()}."
            )
            raise self._broken

    def is_here(self, peer: int) -> bool:
        """Takes that worker's signal if it has come; does not wait."""
        if not signals.is_posted(self._waits[peer]):
            return False
        self._taken[peer] += 1
        return True

    def _part(self) -> None:
        """Another worker made another call. All find that out at their first wait."""
        name, dtype, size, root, parts = self._kind
        text = f"{name} of {size} {str(dtype).removeprefix('torch.')}" + (f" from {root}" if root else "")
        text += f" in parts of {', '.join(map(str, parts))}" if parts else ""
        self.part(f"{text} at {self.site()}")

    def part(self, text: str) -> None:
        """The workers have parted, and each finds that out here: they tell each other what they called, and raise."""
        if self._broken is not None:
            raise self._broken
        raw = text.encode()[: TEXT - 1]
        at = self._texts[self.rank]
        self._region.memory[at : at + len(raw) + 1] = raw + b"\0"
        self.signal()
        until, said = time.monotonic() + HEAR_OUT, []
        for peer in range(self.world):
            if peer == self.rank:
                said.append((peer, text))
                continue
            heard = True
            while heard and self._taken[peer] < self._signals:
                heard = signals.sleep(self._waits[peer], max(0.0, until - time.monotonic()))
                self._taken[peer] += heard
            at = self._texts[peer]
            words = bytes(self._region.memory[at : at + TEXT]).split(b"\0")[0].decode(errors="replace")
            said.append((peer, words if heard else "nothing yet"))
        self._broken = PartedError(
            "The workers entered different collectives: "
            + "; ".join(f"worker {self.names[p]}: {words}" for p, words in said),
            advice="A branch that depends on time, on unseeded randomness or on the process leads workers apart: all "
            "must make the same collectives in the same order, of the same size and dtype.",
        )
        raise self._broken
