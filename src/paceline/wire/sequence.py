"""Messages that arrive once and in order, also if the connection breaks and is made again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Sequence(Generic[Message]):
    """One side of a connection. Its messages are numbered from 1, and each tells how far this side has heard the other.
    What the other side has not heard is sent again over each new connection."""

    def __init__(self) -> None:
        self.heard = 0  # the number of the other side's last message
        self._sent = 0
        self._kept: deque[tuple[int, Message]] = deque()

    @property
    def waits(self) -> bool:
        """Whether the other side has not heard everything yet."""
        return bool(self._kept)

    def add(self, message: Message) -> int:
        """The number of a message that is sent now."""
        self._sent += 1
        self._kept.append((self._sent, message))
        return self._sent

    def unheard(self) -> Iterator[tuple[int, Message]]:
        """What to send over a new connection."""
        return iter(list(self._kept))

    def accepts(self, number: int, heard: int) -> bool:
        """Whether a message of the other side, which has heard so many, counts: not one that has come before, and none
        that comes after one that is missing, because both are sent again."""
        while self._kept and self._kept[0][0] <= heard:
            self._kept.popleft()
        if number != self.heard + 1:
            return False
        self.heard = number
        return True
