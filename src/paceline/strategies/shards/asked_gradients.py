"""torch.autograd.grad of parameters that FSDP2 holds.

The graph of a model's call ends in the whole parameters that FSDP2 had gathered for the call, and not in the sharded
ones that the script has. A term outside of the model (a penalty) ends in the sharded ones. So both are asked for: the
gradients of the former are of this worker's rows, and are averaged; those of the latter are whole already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from paceline.comm.group import Group
from paceline.script.rows import crossings
from paceline.strategies.mirrored import leaves_of
from paceline.strategies.shards.units import refusal
from paceline.torch_private import is_dtensor, no_torch_function

NAMES = (
    *("grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched"),
    "materialize_grads",
)
WHAT = "which parameters were used"


def options_of(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options of torch.autograd.grad by name."""
    return dict(zip(NAMES, args, strict=False)) | kwargs


def held_of(tensor: torch.Tensor) -> Any:
    """What FSDP2 holds about a parameter; None if the tensor is none, nor one that was gathered for a function."""
    return getattr(getattr(tensor, "_now", tensor), "_paceline_held", None)


def ask(
    plain: Callable[..., Any],
    outputs: Any,
    inputs: Sequence[torch.Tensor],
    options: dict[str, Any],
    group: Group,
    whole: Callable[[Any], torch.Tensor],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients, whole and equal on all workers. `group`: the workers that share the rows of a call. Every worker
    calls it; waits for all."""
    if options.get("create_graph"):
        raise refusal("torch.autograd.grad(create_graph=True)", "gradients of gradients")
    if options.get("is_grads_batched"):
        raise refusal("torch.autograd.grad(is_grads_batched=True)", "batched gradients of parameters")
    fills, lets = bool(options.pop("materialize_grads", False)), bool(options.pop("allow_unused", False))
    now = [getattr(tensor, "_now", tensor) for tensor in inputs]
    held = {n: one for n, tensor in enumerate(inputs) if (one := held_of(tensor)) is not None}
    ends = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    leaves = {id(leaf) for leaf, _ in leaves_of(ends)}
    direct = [n for n, tensor in enumerate(now) if not is_dtensor(tensor) or id(tensor) in leaves]
    wide = [*(now[n] for n in direct), *(one._unsharded_param for one in held.values())]
    # A DTensor's own rules would gather it: the graph has the sharded one.
    with no_torch_function() if any(map(is_dtensor, wide)) else nullcontext():
        got = list(plain(outputs, wide, **options, allow_unused=True))
    found: list[torch.Tensor | None] = [None] * len(now)
    for n, grad in zip(direct, got[: len(direct)], strict=True):
        found[n] = whole(grad) if is_dtensor(grad) else grad
    inside = [whole(grad) if is_dtensor(grad) else grad for grad in got[len(direct) :]]  # of a part of a layer
    for n, more in zip(held, _averaged(inside, list(held.values()), group), strict=True):
        before = found[n]
        found[n] = more if before is None else before if more is None else before + more
    missing = [n for n, grad in enumerate(found) if grad is None]
    if missing and not (lets or fills):
        raise RuntimeError(
            "One of the differentiated Tensors appears to not have been used in the graph. Set allow_unused=True if "
            "this is the desired behavior."
        )
    if fills:
        for n in missing:
            found[n] = torch.zeros(now[n].shape, dtype=now[n].dtype, device=now[n].device)
    return tuple(found)


def _averaged(own: list[torch.Tensor | None], held: list[Any], group: Group) -> list[torch.Tensor | None]:
    """The averages over the workers. Another worker's rows may use a parameter that own rows do not."""
    if group.world == 1:
        return own
    mine = torch.tensor([grad is not None for grad in own], dtype=torch.uint8, device="cpu")
    used = group.gather_vectors(mine, WHAT).max(0).values.tolist()
    averaged: list[torch.Tensor | None] = []
    for grad, one, any_uses in zip(own, held, used, strict=True):
        like = one._unsharded_param
        if grad is None and any_uses:
            grad = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
        averaged.append(None if grad is None else crossings.average(grad, group))
    return averaged
