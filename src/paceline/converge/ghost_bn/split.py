"""How a batch is cut into ghosts: runs of `size` consecutive samples, the last one with the remainder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ghosts:
    """`count` ghosts of a batch; all but the last have `size` samples, the last has the rest."""

    batch: int
    size: int
    count: int

    @classmethod
    def of(cls, batch: int, size: int, pixels: int) -> Ghosts:
        """A last ghost with one value per channel would have no variance: it joins the ghost before it."""
        count = -(-batch // size)
        if count > 1 and (batch - (count - 1) * size) * pixels == 1:
            count -= 1
        return cls(batch, min(size, batch), count)

    @property
    def samples(self) -> list[int]:
        """The number of samples of each ghost."""
        whole = (self.count - 1) * self.size
        return [self.size] * (self.count - 1) + [self.batch - whole]
