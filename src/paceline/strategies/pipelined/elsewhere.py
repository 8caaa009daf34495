"""A tensor that another stage of a pipeline has computed: its shape is known, its numbers are not here.

A worker runs the model's own forward, also the lines before its stage: what these compute from tensors of earlier
stages is `Elsewhere`, on the meta device. Where its stage begins, the worker has received the numbers of the tensors
that are handed over: these get a `value`, and from then on they take part in the computation. A number that depends on
any other `Elsewhere` cannot be computed here; its `sources` say which outputs of modules it needs.
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.script import tree
from paceline.spread.stage_numbers import META, on_meta
from paceline.spread.stage_tensor import StageTensor
from paceline.torch_private import OwnTensor, no_torch_function

Source = tuple[int, int]  # the number of a module's call in the forward, and of a tensor in its output
device_of: Any = torch.Tensor.device.__get__


class Elsewhere(OwnTensor):
    """Shape, type and device of a tensor. `value`: the numbers, if they were handed over."""

    value: torch.Tensor | None
    true_device: torch.device
    sources: frozenset[Source]

    @classmethod
    def like(cls, shape: Any, dtype: torch.dtype, device: torch.device, source: Source) -> Elsewhere:
        return cls.of(torch.empty(shape, dtype=dtype, device=META), device, frozenset({source}))

    @classmethod
    def of(cls, meta: torch.Tensor, device: torch.device, sources: frozenset[Source]) -> Elsewhere:
        made: Elsewhere = meta.as_subclass(cls)
        made.value, made.true_device, made.sources = None, device, sources
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = [leaf for leaf in tree.leaves([args, kwargs]) if isinstance(leaf, Elsewhere)]
        with no_torch_function():
            if all(one.value is not None for one in found):
                args, kwargs = tree.replace((args, kwargs), lambda x: x.value if isinstance(x, Elsewhere) else x)
                return func(*args, **kwargs)
            device = found[0].true_device
            if func == device_of:
                return device
            args, kwargs = tree.replace((args, kwargs), _on_meta)
            if args and func is torch.Tensor.to:
                args = (args[0], *(META if isinstance(arg, str) else arg for arg in args[1:]))
            if "device" in kwargs:
                kwargs["device"] = META
            result = func(*args, **kwargs)
            sources = frozenset[Source]().union(*(one.sources for one in found if one.value is None))
            return tree.replace(result, lambda x: Elsewhere.of(x, device, sources) if _is_new(x) else x)


def is_missing(leaf: Any) -> bool:
    """Whether the numbers are not here."""
    return isinstance(leaf, Elsewhere) and leaf.value is None


def handed_over(leaf: Any) -> Any:
    """The numbers, if they were handed over."""
    return leaf.value if isinstance(leaf, Elsewhere) and leaf.value is not None else leaf


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, Elsewhere):
        return leaf if leaf.value is None else leaf.value.detach().to(META)
    if isinstance(leaf, (StageTensor, torch.device)):  # of another stage: only its shape is here
        return on_meta(leaf)
    return leaf.detach().to(META) if isinstance(leaf, torch.Tensor) else leaf


def _is_new(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not (isinstance(leaf, Elsewhere) and hasattr(leaf, "value"))
