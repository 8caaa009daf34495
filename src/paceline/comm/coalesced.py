"""Sends many tensors in a few messages: a model has hundreds, most of them small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from paceline.comm.group import Group
from paceline.torch_private import plain_parts

AT_ONCE = 32 << 20  # bytes of a message: a larger one gains nothing and needs memory


def broadcast_all(group: Group, tensors: Iterable[torch.Tensor], what: str) -> None:
    """Gives every worker rank 0's values, in place. Every worker calls it, with tensors of the same shapes and types in
    the same order; waits for all. Autograd does not see the change: a graph may refer to the tensors already (a penalty
    before a model's first call), and the values are equal on all workers unless the script has no seed."""
    if group.world == 1:
        return
    for together in _messages(part.data for tensor in tensors for part in plain_parts(tensor)):
        if len(together) == 1:
            group.broadcast(together[0], what)
            continue
        flat = torch.cat([tensor.reshape(-1) for tensor in together])
        group.broadcast(flat, what)
        if group.rank:
            for tensor, values in zip(together, flat.split([t.numel() for t in together]), strict=True):
                tensor.copy_(values.view(tensor.shape))


def from_owners(
    group: Group, owned: Sequence[tuple[torch.Tensor, int, torch.Tensor | None]], what: str
) -> Iterator[tuple[int, int, torch.Tensor]]:
    """The values of tensors that one worker holds each. `owned`: a tensor of the same shape, type and device, the rank
    of the owner, and there the value. Yields a number in `owned`, its owner and the value. Every worker calls it, with
    equal shapes, types and owners; waits for all."""
    known = {id(like): (number, owner, value) for number, (like, owner, value) in enumerate(owned)}
    for together in _messages(like for like, _, _ in owned):
        found = sorted((known[id(like)] for like in together), key=lambda one: one[1])
        mine = [value.detach().reshape(-1) for _, owner, value in found if owner == group.rank and value is not None]
        flat = torch.cat(mine) if mine else torch.empty(0, dtype=together[0].dtype, device=together[0].device)
        sizes, counts = [0] * group.world, [owned[number][0].numel() for number, _, _ in found]
        for count, (_, owner, _) in zip(counts, found, strict=True):
            sizes[owner] += count
        rows = group.gather_rows(flat, 0, sizes, what)
        for (number, owner, _), part in zip(found, rows.split(counts), strict=True):
            yield number, owner, part.view(owned[number][0].shape)


def _messages(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors of one device and type, together up to a size."""
    kinds: dict[tuple[torch.device, torch.dtype, torch.layout], list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype, tensor.layout), []).append(tensor)
    for (_, _, layout), alike in kinds.items():
        together, size = list[torch.Tensor](), 0
        for tensor in alike:
            if together and (size + tensor.nbytes > AT_ONCE or layout is not torch.strided):
                yield together
                together, size = [], 0
            together.append(tensor)
            size += tensor.nbytes
        yield together
