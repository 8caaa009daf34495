"""An exception in one stage of a pipeline is raised by all stages.

A stage that has failed goes on with its schedule without computing: in the place of activations and gradients it sends
the failure, so that no stage waits for a message that does not come. After the last micro-batch all stages know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import msgspec

from paceline.comm.ending import CalledOff
from paceline.comm.group import Group
from paceline.errors import PeerRaisedError
from paceline.script.together import Raised, describe, rebuild, set_streams

OFF = b""  # told if another replica of the pipeline has failed: its exception comes from there


class Failure:
    """The failure of a call in stages, as one worker knows it. False as long as there is none."""

    def __init__(self, rows: Group) -> None:
        """`rows`: the workers with the same stage of the other replicas."""
        self._rows = rows
        self._own: Exception | None = None
        self.told: bytes | None = None  # for the other workers

    def __bool__(self) -> bool:
        return self.told is not None

    def note(self, error: Exception | CalledOff) -> None:
        """This stage has failed."""
        if isinstance(error, CalledOff):
            self.told = OFF
        else:
            self._own, self.told = error, msgspec.msgpack.encode(describe(error, []))

    def hear(self, told: bytes) -> None:
        """Another stage has failed."""
        self.told = self.told or told

    def raise_first(self, told: Sequence[bytes | None]) -> NoReturn:
        """Raises the same exception on every worker, given what each of them knows."""
        first = next(filter(None, told), OFF)
        if first == OFF:
            self._rows.agree()  # raises
            raise CalledOff
        found = msgspec.msgpack.decode(first, type=Raised)
        own = self._own
        if own is not None and (type(own).__qualname__, str(own)) == (found.name, found.text):
            raise own
        set_streams(found)
        error = rebuild(found) or RuntimeError(found.text)
        error.__cause__ = PeerRaisedError(f"Another stage of the pipeline raised this:\n{found.trace}")
        raise error
