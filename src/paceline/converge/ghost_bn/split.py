"""How a batch is cut into ghosts: stretches of `size` samples, in order, the last one with what is left."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ghosts:
    """`count` ghosts of a batch; all but the last have `size` samples, the last all that follow."""

    batch: int
    size: int
    count: int

    @classmethod
    def of(cls, batch: int, size: int, pixels: int) -> Ghosts:
        """A last sample that has one value a channel, and so no variance, joins the ghost before it."""
        count = -(-batch // size)
        if count > 1 and (batch - (count - 1) * size) * pixels == 1:
            count -= 1
        return cls(batch, min(size, batch), count)

    @property
    def samples(self) -> list[int]:
        """How many each has."""
        whole = (self.count - 1) * self.size
        return [self.size] * (self.count - 1) + [self.batch - whole]
