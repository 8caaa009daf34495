"""The losses of past steps as Python floats, without waiting for a GPU.

A copy from a GPU costs the host more than all other book-keeping of a step, so several losses are copied at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(eq=False, slots=True)
class LossTicket:
    """A loss on its way to the host. `value` is valid once `is_here` returns True."""

    value: float | None = None
    batch: LossBatch | None = None

    def is_here(self, *, wait: bool) -> bool:
        return self.batch is None or self.batch.arrive(wait=wait)


@dataclass(eq=False, slots=True)
class LossBatch:
    """Losses that are copied together, on the stream that computes them."""

    tickets: list[LossTicket] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    values: Any = None
    sent: Any = None

    def send(self) -> None:
        device = self.tensors[0].device
        whole = torch.stack([tensor.to(device) for tensor in self.tensors])
        self.values = torch.empty(whole.shape, dtype=whole.dtype, pin_memory=True, device="cpu").copy_(
            whole, non_blocking=True
        )
        self.sent = torch.cuda.Event()
        self.sent.record(torch.cuda.current_stream(device))
        # A tensor that the script has changed in place since then no longer holds the loss.
        stale = [tensor._version != version for tensor, version in zip(self.tensors, self.versions, strict=True)]
        self.tickets = [ticket if not gone else LossTicket() for ticket, gone in zip(self.tickets, stale, strict=True)]
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


class LossReader:
    """The losses of one worker. Call `take` for each loss, and `send` from time to time."""

    def __init__(self) -> None:
        self._open = LossBatch()

    def take(self, loss: torch.Tensor) -> LossTicket | None:
        """A ticket for the loss; None if the tensor is not a single floating-point number."""
        if loss.dim() or not loss.is_floating_point():
            return None
        loss = loss.detach()
        if loss.device.type == "cpu":
            return LossTicket(float(loss))
        ticket, batch = LossTicket(batch=self._open), self._open
        batch.tickets.append(ticket)
        batch.tensors.append(loss)
        batch.versions.append(loss._version)
        return ticket

    def send(self) -> None:
        """Starts the copies of the losses taken since the last call."""
        if self._open.tensors:
            self._open.send()
            self._open = LossBatch()
