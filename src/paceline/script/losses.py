"""The losses of past steps as Python floats, without waiting for a GPU.

A copy from a GPU to the host costs more than all other book-keeping of a step. So a loss is first copied on the GPU, at
once: the script may change the tensor in place, and a graph may reuse its memory for the next step. Many losses then go
to the host in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.torch_private import is_capturing

ROOM = 128  # losses of a batch


@dataclass(eq=False, slots=True)
class LossTicket:
    """A loss on its way to the host. `value` is valid once `is_here` returns True."""

    value: float | None = None
    batch: LossBatch | None = None

    def is_here(self, *, wait: bool) -> bool:
        return self.batch is None or self.batch.arrive(wait=wait)


@dataclass(eq=False, slots=True)
class LossBatch:
    """Losses that go to the host together, on the stream that computes them."""

    slots: list[torch.Tensor] = field(default_factory=list)  # on the GPU, one a loss
    whole: Any = None  # all slots
    tickets: list[LossTicket] = field(default_factory=list)
    values: Any = None
    sent: Any = None

    @classmethod
    def on(cls, device: torch.device) -> LossBatch:
        whole = torch.empty(ROOM, dtype=torch.float64, device=device)
        return cls(list(whole.unbind()), whole)

    def take(self, loss: torch.Tensor) -> LossTicket:
        self.slots[len(self.tickets)].copy_(loss)
        ticket = LossTicket(batch=self)
        self.tickets.append(ticket)
        return ticket

    def send(self) -> None:
        held = self.whole[: len(self.tickets)]
        self.values = torch.empty(held.shape, dtype=held.dtype, pin_memory=True, device="cpu")
        self.values.copy_(held, non_blocking=True)
        self.sent = torch.cuda.Event()
        self.sent.record(torch.cuda.current_stream(self.whole.device))

    def arrive(self, *, wait: bool) -> bool:
        if self.sent is None or not (wait or self.sent.query()):
            return False
        if self.tickets:
            self.sent.synchronize()
            for ticket, value in zip(self.tickets, self.values.tolist(), strict=True):
                ticket.value = value
            self.tickets, self.slots, self.whole = [], [], None
        return True


class LossReader:
    """The losses of one worker. Call `take` for each loss, and `send` from time to time."""

    def __init__(self) -> None:
        self._open: LossBatch | None = None

    def take(self, loss: torch.Tensor) -> LossTicket | None:
        """A ticket for the loss; None if the tensor is not a single floating-point number, or has no value yet because
        the script captures a graph."""
        if loss.dim() or not loss.is_floating_point():
            return None
        loss = loss.detach()
        if loss.device.type == "cpu":
            return LossTicket(float(loss))
        if is_capturing():
            return None
        if self._open is not None and (len(self._open.tickets) == ROOM or self._open.whole.device != loss.device):
            self.send()
        if self._open is None:
            self._open = LossBatch.on(loss.device)
        return self._open.take(loss)

    def send(self) -> None:
        """Starts the copy of the losses taken since the last call."""
        if self._open is not None:
            self._open.send()
            self._open = None
