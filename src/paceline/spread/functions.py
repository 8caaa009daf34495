"""torch's functions on DTensors along the axes of a mesh: which of them work on parts; functions of lists; norms.

Every worker of the axis calls the same functions in the same order. If a peer is gone, a message raises.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from paceline.script import tree
from paceline.script.patches import all_of, patch
from paceline.script.rows.crossings import HALF
from paceline.script.rows.elementwise import IN_PLACE, ONE, SEVERAL
from paceline.spread.dtensors import cuts_of, group_of, is_laid_like, is_sharded, like, part_like, part_of
from paceline.spread.write_back import LentCopies

# Facts about shape and type, and what belongs to the object itself. Nothing is computed.
SHAPES = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "is_complex"),
    *("element_size", "__len__", "__hash__", "get_device"),
}
FACTS = SHAPES | {
    *("is_signed", "is_inference", "is_conj", "is_neg", "requires_grad_", "register_hook", "retain_grad", "backward"),
    *("register_post_accumulate_grad_hook", "storage_offset", "is_same_size", "is_shared", "is_pinned", "_use_count"),
    *("_is_view", "is_tensor", "dim_order", "untyped_storage", "data_ptr", "_is_zerotensor", "is_nonzero_static"),
    *("has_names", "unsafe_is_contiguous", "result_type", "detach_"),
}


def root_of(name: str) -> str:
    """The name without the marks of an operator or of an in-place variant: `radd` of `__radd__`, `add` of `add_`."""
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name[:-1] if name.endswith("_") else name


# Element by element, without random numbers. An in-place variant has the same root.
ELEMENTWISE = {root_of(name) for name in f"{ONE} {SEVERAL} {IN_PLACE}".split()}
ELEMENTWISE -= {"sgn"}  # its gradient is a tensor without memory
ELEMENTWISE |= {"zeros_like", "ones_like", "empty_like", "full_like", "contiguous"}
_OPERATORS = {name for name in IN_PLACE.split() if name.startswith("__")}


def is_in_place(name: str) -> bool:
    """Whether the function changes its first argument."""
    return name in _OPERATORS or name == "__setitem__" or (name.endswith("_") and not name.startswith("__"))


def name_of(f: Any) -> str:
    """The function's name; of an operator of torch.ops without its overload (`add` of `add.Tensor`)."""
    return str(getattr(f, "__name__", "")).partition(".")[0]


def attribute_of(descriptor: Any) -> str:
    """The name of a tensor's attribute; a property that has taken the place of torch's own has none."""
    named: str | None = getattr(descriptor, "__name__", None)
    return named or next((name for name in ("grad", "data") if vars(torch.Tensor).get(name) is descriptor), "")


def is_torchs_own(frame: FrameType) -> bool:
    """Whether this is code of torch's own, as FSDP2, which means a part where it names a DTensor."""
    return str(frame.f_globals.get("__name__", "")).startswith("torch.distributed.")


def patch_dtensors(answer: Callable[..., Any], whole: Callable[[Any], torch.Tensor]) -> Callable[[], None]:
    """From now on DTensors behave as whole tensors in this process: `answer(f, types, args, kwargs)` is what a function
    of torch returns for them, and `print` shows the whole."""

    def asked(cls: Any, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(f, types, args, kwargs or {})

    def show(self: Any, *, tensor_contents: Any = None) -> str:
        full = whole(self)
        return repr(nn.Parameter(full, self.requires_grad) if isinstance(self, nn.Parameter) else full)

    return all_of([patch(DTensor, "__torch_function__", classmethod(asked)), patch(DTensor, "__repr__", show)])


def fitting(value: Any, beside: Any, whole: Callable[[Any], torch.Tensor]) -> Any:
    """What a function of this worker's part of `beside`, or of a plain `beside`, needs of another value."""
    if not is_sharded(beside):
        return whole(value) if is_sharded(value) else value
    if is_sharded(value):
        return part_of(value) if is_laid_like(value, beside) else part_like(whole(value), beside)
    return part_like(value, beside) if isinstance(value, torch.Tensor) else value


def of_lists(
    f: Any, name: str, args: Any, kwargs: Any, whole: Callable[[Any], torch.Tensor], copies: LentCopies
) -> Any:
    """A function of lists of tensors, in which divided tensors may stand beside plain ones. The first list says whose
    part, or that the whole is computed."""
    first, is_norm = args[0] if args else None, name == "_foreach_norm"
    tensors = [leaf for leaf in tree.leaves((args, kwargs)) if is_sharded(leaf)]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    # In half precision a norm of a part would be rounded before the parts' are put together.
    rounds = is_norm and kwargs.get("dtype") is None and any(tensor.dtype in HALF for tensor in tensors)
    if learns or rounds or not isinstance(first, (list, tuple)):
        return copies.on_wholes(f, args, kwargs, first if first and is_in_place(name) else ())

    def pick(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and len(value) == len(first):
            return [fitting(one, beside, whole) for one, beside in zip(value, first, strict=True)]
        return value

    parts = pick(first)
    found = f(parts, *map(pick, args[1:]), **{key: pick(value) for key, value in kwargs.items()})
    if found is None or is_in_place(name):
        return None if found is None else first
    if is_norm:
        return norms(found, first, args[1] if len(args) > 1 else kwargs.get("ord", 2))
    if any(one.shape != part.shape for one, part in zip(found, parts, strict=True)):  # of each a single number
        return copies.on_wholes(f, args, kwargs)
    return [like(one, beside) if is_sharded(beside) else one for one, beside in zip(found, first, strict=True)]


def norms(own: Any, tensors: Any, order: Any) -> list[torch.Tensor]:
    """Norms of whole tensors from the norms of the parts, in one message for each axis. Norms of plain tensors stay."""
    own, cut = list(own), dict[DeviceMesh, list[int]]()
    for n, tensor in enumerate(tensors):
        if is_sharded(tensor):
            own[n] = own[n] if part_of(tensor).numel() else torch.zeros_like(own[n])
            for _, axis, _ in cuts_of(tensor):
                cut.setdefault(axis, []).append(n)
    for axis, at in cut.items():
        group, mine = group_of(axis), torch.stack([own[n] for n in at])
        every = group.gather_rows(mine.view(1, -1), 0, [1] * group.world, "the norms of parts")
        for n, norm in zip(at, torch.linalg.vector_norm(every, order, dim=0).unbind(), strict=True):
            own[n] = norm.to(own[n].dtype)
    return own
