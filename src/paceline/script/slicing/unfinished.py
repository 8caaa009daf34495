"""The state after a call that raised: on every worker the state that plain Python would have left.

The worker that raised stopped where plain Python would have stopped; its peers went further. Changes that this worker
had made are kept, combined from all workers' rows; changes that it had not made are undone. If no call raises, the cost
is one look at the attributes and buffers that the proof found to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.comm.memory.flats import as_bytes
from paceline.script.proof import side_effects
from paceline.script.proof.plan import Role
from paceline.script.proof.side_effects import Place
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split
from paceline.script.together import PLAIN, is_plain
from paceline.torch_private import BatchNorm


@dataclass(slots=True)
class Attribute:
    """A place before a call. `lent` is the value there during the call: the same value, or this worker's rows of it."""

    place: Place
    value: Any
    lent: Any
    length: int | None  # of the list that holds the place, if a list does

    @classmethod
    def of(cls, module: nn.Module, place: Place) -> Attribute:
        value = side_effects.get(module, place)
        held = side_effects.get(module, place[:-1]) if len(place) > 2 else None
        return cls(place, value, value, len(held) if isinstance(held, list) else None)

    def lend(self, module: nn.Module, role: Role, split: Split) -> None:
        """Cuts a value that an earlier call left for the whole batch: this call may continue from it (a recurrent
        state)."""
        if role.kind != "rows" or not isinstance(self.value, torch.Tensor):
            return
        if self.value.shape[role.dim : role.dim + 1] == (split.batch,):
            self.lent = crossings.cut(self.value, role.dim, split)
            side_effects.put(module, self.place, self.lent)

    def take_back(self, module: nn.Module) -> None:
        """Restores the whole value where the call has moved it in its container: items appended after it."""
        if self.lent is self.value or len(self.place) == 2:
            return
        for place in side_effects.places_beside(module, self.place):
            if side_effects.get(module, place) is self.lent:
                side_effects.put(module, place, self.value)

    def has_changed(self, module: nn.Module) -> bool:
        now = Attribute.of(module, self.place)
        return now.value is not self.lent or now.length != self.length

    def put_back(self, module: nn.Module) -> None:
        now = Attribute.of(module, self.place)
        if now.length is not None and self.length is not None and now.length > self.length:
            del side_effects.get(module, self.place[:-1])[self.length :]
        elif now.value is not self.value and now.value is not None:
            side_effects.put(module, self.place, self.value)


@dataclass(slots=True)
class Unfinished:
    """The state before the current sliced call. `joined` counts the entries that were combined since then."""

    module: nn.Module  # not its compiled form
    attributes: list[Attribute]
    buffers: list[tuple[torch.Tensor, torch.Tensor]]  # that the plan combines, each with a copy
    joined: int = 0

    def changed_by_all(self, group: Group) -> list[bool]:
        """Whether all workers changed each attribute, then each buffer. Called by every worker; waits for all."""
        mine = [
            *(attribute.has_changed(self.module) for attribute in self.attributes),
            *(not torch.equal(buffer, old) for buffer, old in self.buffers),
        ]
        if not mine:
            return []
        told = group.gather_vectors(
            torch.tensor(mine, dtype=torch.uint8, device="cpu"), "what an unfinished call has changed"
        )
        return [bool(flag) for flag in told.min(0).values.tolist()]

    @torch.no_grad()
    def put_back(self, number: int) -> None:
        """Restores an attribute or a buffer, given by its index in `changed_by_all`."""
        if number < len(self.attributes):
            self.attributes[number].put_back(self.module)
        else:
            buffer, old = self.buffers[number - len(self.attributes)]
            buffer.copy_(old)


def equal_buffers(module: nn.Module, *, norms: bool, floats: bool = True, but: Any = ()) -> list[torch.Tensor]:
    """The buffers that are equal on all workers between calls: integers; batch norm's statistics if `norms` see the
    whole batch; other floating-point buffers if `floats`. Without the buffers in `but`."""
    left_out = {id(buffer) for buffer in but}
    return [
        buffer
        for m in module.modules()
        for buffer in m._buffers.values()
        if buffer is not None and buffer.layout is torch.strided and id(buffer) not in left_out
        if not buffer.is_floating_point() or (norms if isinstance(m, BatchNorm) else floats)
    ]


def numbers_in(module: nn.Module, *, but: Any = ()) -> Iterator[list[Any]]:
    """The numbers, texts and flags in attributes of the module and its children: path, name and value. Without the
    places in `but`."""
    for path, m in module.named_modules():
        for name, value in m.__dict__.items():
            if name not in side_effects.OWN and type(value) in PLAIN and is_plain(value) and (path, name) not in but:
                yield [path, name, value]


def set_numbers(module: nn.Module, numbers: list[Any]) -> None:
    for path, name, value in numbers:
        attributes = module.get_submodule(path).__dict__
        if type(attributes.get(name)) in PLAIN:
            attributes[name] = value


def sizes_of(buffers: list[torch.Tensor]) -> list[int]:
    """The buffers' sizes in bytes."""
    return [buffer.numel() * buffer.element_size() for buffer in buffers]


@torch.no_grad()
def follow(buffers: list[torch.Tensor], first: int, sizes: list[int], group: Group) -> None:
    """Copies worker `first`'s buffers, of these sizes in bytes, to every worker. Every worker calls it; waits for
    all of them."""
    if not sum(sizes):
        return
    mine = (
        torch.cat([as_bytes(buffer) for buffer in buffers])
        if group.rank == first
        else torch.empty(0, device="cpu").byte()
    )
    counts = [sum(sizes) if rank == first else 0 for rank in range(group.world)]
    whole = group.gather_rows(mine, 0, counts, "the buffers of an unfinished call")
    for buffer, raw in zip(buffers, whole.split(sizes), strict=False):
        if group.rank == first or raw.numel() != buffer.numel() * buffer.element_size():
            continue
        if not torch.equal(as_bytes(buffer).cpu(), raw.cpu()):  # … else changed on this worker only
            buffer.copy_(raw.clone().view(buffer.dtype).view(buffer.shape))
