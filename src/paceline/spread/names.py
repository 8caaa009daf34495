"""torch's functions by name: those that may run on a worker's part of a tensor."""

from __future__ import annotations

_KEPT = """
    size dim numel stride is_floating_point is_complex is_contiguous element_size nelement ndimension get_device
    is_signed is_conj is_neg is_inference is_pinned register_hook register_post_accumulate_grad_hook requires_grad_
    retain_grad __hash__ __len__ __deepcopy__ is_same_size has_names result_type data_ptr is_shared untyped_storage
    storage_offset backward detach_
"""
_ELEMENTWISE = """
    add sub mul div pow abs sqrt square exp log log1p neg sign rsqrt reciprocal clamp clamp_min clamp_max lerp addcmul
    addcdiv maximum minimum true_divide truediv multiply divide subtract rsub radd rmul rtruediv rpow negative iadd isub
    imul itruediv ipow tanh sigmoid relu zero fill copy clone detach zeros_like ones_like empty_like full_like to float
    double half bfloat16 contiguous eq ne lt le gt ge isnan isinf isfinite nan_to_num conj hypot copysign where
    logical_and logical_or logical_not
"""

# Facts about the tensor, and what belongs to the object itself. Nothing is computed.
KEPT = frozenset(_KEPT.split())
ASKED = frozenset({"type"})  # without a further argument: a fact

# Element by element, without random numbers. An in-place variant has the same root.
ELEMENTWISE = frozenset(_ELEMENTWISE.split())


def root_of(name: str) -> str:
    """The name without the marks of an operator or of an in-place variant: `__iadd__` and `add_` work as `add`."""
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name[:-1] if name.endswith("_") else name


def is_in_place(name: str) -> bool:
    """Whether the function changes its first argument."""
    if name.startswith("__"):
        return name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__", "__idiv__")
    return name.endswith("_")
