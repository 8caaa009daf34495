"""The losses of past steps, as numbers, without ever waiting for a GPU.

Copying one from a GPU costs the host more than the rest of a step's book-keeping: they are copied several at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False, slots=True)
class Ticket:
    """A loss that was taken. `value` counts once `is_here`."""

    value: float | None = None
    batch: Batch | None = None

    def is_here(self, *, wait: bool) -> bool:
        return self.batch is None or self.batch.arrive(wait=wait)


@dataclass(eq=False, slots=True)
class Batch:
    """Losses that are copied together, behind the work that computes them."""

    tickets: list[Ticket] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    values: Any = None
    sent: Any = None

    def send(self) -> None:
        device = self.tensors[0].device
        whole = torch.stack([tensor.to(device) for tensor in self.tensors])
        self.values = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True).copy_(whole, non_blocking=True)
        self.sent = torch.cuda.Event()
        self.sent.record(torch.cuda.current_stream(device))
        # What the script has changed in place since is no loss any more.
        stale = [tensor._version != version for tensor, version in zip(self.tensors, self.versions, strict=True)]
        self.tickets = [ticket if not gone else Ticket() for ticket, gone in zip(self.tickets, stale, strict=True)]
        self.tensors.clear()

    def arrive(self, *, wait: bool) -> bool:
        if self.sent is None or not (wait or self.sent.query()):
            return False
        if self.tickets:
            self.sent.synchronize()
            for ticket, value in zip(self.tickets, self.values.tolist(), strict=True):
                ticket.value = value
            self.tickets = []
        return True


class Losses:
    """Of one worker. `take` each loss as it comes, `send` now and then."""

    def __init__(self) -> None:
        self._open = Batch()

    def take(self, loss: torch.Tensor) -> Ticket | None:
        """None where it is not one number."""
        if loss.dim() or not loss.is_floating_point():
            return None
        loss = loss.detach()
        if loss.device.type == "cpu":
            return Ticket(float(loss))
        ticket, batch = Ticket(batch=self._open), self._open
        batch.tickets.append(ticket)
        batch.tensors.append(loss)
        batch.versions.append(loss._version)
        return ticket

    def send(self) -> None:
        """Starts the copies of what was taken since the last time."""
        if self._open.tensors:
            self._open.send()
            self._open = Batch()
