"""All workers must have computed the same loss.

The losses travel in the tail of the gradients. A loss on the host is compared after its own backward. A loss on a GPU
is copied while the GPU works, and compared after the next backward, so that no worker waits for the GPU; the last one
at the end of the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import torch

from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script.losses import LossReader, LossTicket
from paceline.torch_private import is_capturing

SAME = 1e-4  # relative: losses of workers that hold the same batch differ by rounding at most


class LossCheck:
    """The losses of one worker. After a backward every worker sends its loss, or `late` of it, and calls `compare`."""

    def __init__(self) -> None:
        self._reader = LossReader()
        self._late: tuple[LossTicket, str] | None = None  # the loss on its way from the GPU, and its line
        self._line = ""  # of the loss that is being compared

    def late(self, loss: torch.Tensor) -> float:
        """Starts the copy of a loss that is not on the host. Returns the one before, or 0.0."""
        value = self._arrived()
        if loss.is_cuda and is_number(loss) and not is_capturing():
            ticket = self._reader.take(loss)
            self._reader.send()
            self._late = None if ticket is None else (ticket, script_line())
        return value

    def _arrived(self) -> float:
        """The last loss of a GPU. It was computed a whole step ago: hardly a wait."""
        if self._late is None:
            return 0.0
        (ticket, self._line), self._late = self._late, None
        ticket.is_here(wait=True)
        return ticket.value or 0.0

    def compare(self, losses: Sequence[float], *, late: bool) -> None:
        """PartedError if the workers' losses differ by more than rounding."""
        low, high = min(losses), max(losses)
        if all(map(isfinite, losses)) and high - low > SAME * max(abs(low), abs(high), 1e-6):
            raise PartedError(
                f"The losses at {self._line if late else script_line()} differ between the workers: "
                + ", ".join(f"worker {rank} {value:.6g}" for rank, value in enumerate(losses)),
                advice="Something in the script differs from worker to worker: randomness seeded from the clock or the "
                "operating system, the order of a set or of os.listdir, or time. Seed or sort it.",
            )

    def end(self, group: Group) -> None:
        """Compares the last loss of a GPU. Every worker calls it; waits for all of them."""
        if self._late is not None:
            mine = torch.tensor([self._arrived()], dtype=torch.float64, device="cpu")
            self.compare(group.gather_vectors(mine, "the last loss").flatten().tolist(), late=True)


def is_number(loss: torch.Tensor) -> bool:
    return loss.dim() == 0 and loss.is_floating_point()
