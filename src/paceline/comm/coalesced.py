"""Broadcasts many tensors in a few messages: a model has hundreds, most of them small."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
