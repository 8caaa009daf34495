"""Functions that treat every element by itself, with broadcasting. Only for speed, but for changes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from paceline.script.rows import crossings
from paceline.script.rows.layout import Layout
from paceline.script.rows.tensor import KNOWN, Rows, first_rows

ONE = """
abs absolute neg negative positive exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sigmoid tanh
relu sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc erfinv lgamma digamma floor ceil round
trunc fix frac sign sgn signbit isnan isinf isfinite isposinf isneginf logical_not bitwise_not logit nan_to_num
clamp clip clamp_min clamp_max float double half bfloat16 int long short char byte bool to type type_as cpu cuda
clone deg2rad rad2deg sinc gelu silu elu leaky_relu selu softplus hardtanh relu6 mish hardswish
hardsigmoid hardshrink softshrink tanhshrink logsigmoid softsign celu threshold __neg__ __abs__ __invert__
__pos__"""
SEVERAL = """
add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow float_power eq ne lt
le gt ge greater greater_equal less less_equal not_equal maximum minimum fmax fmin atan2 arctan2 hypot
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor where lerp addcmul addcdiv isclose
copysign xlogy logaddexp logaddexp2 masked_fill __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __div__
__rdiv__ __truediv__ __rtruediv__ __pow__ __rpow__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__
__or__ __ror__ __xor__ __rxor__ __mod__ __rmod__ __floordiv__ __rfloordiv__"""
IN_PLACE = """
__iadd__ __isub__ __imul__ __idiv__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ copy_
zero_ fill_ masked_fill_"""
NUMBERS = (int, float, bool)
OWNERS: tuple[Any, ...] = (torch, torch.Tensor, F, torch.special)


def knows(names: str, handler: Callable[..., Any], owners: tuple[Any, ...] = OWNERS) -> None:
    """Enters the functions of these names, wherever torch has them, into the table."""
    for owner in owners:
        for name in names.split():
            if callable(f := getattr(owner, name, None)):
                KNOWN[f] = handler


def operand(value: Any, layout: Layout, from_right: int) -> Any:
    """An operand of an elementwise function, for own rows; NotImplemented if it does not fit. The rows lie along the
    dimension `from_right` counted from the right, as in broadcasting."""
    if not isinstance(value, torch.Tensor):
        return value
    dims = value.dim()
    if isinstance(value, Rows):
        fits = dims - value.rows.dim == from_right and value.rows.has_rows_of(layout)
        return value.local if fits else NotImplemented
    if dims < from_right or value.shape[-from_right] == 1:
        return crossings.share(value, layout.split.group)
    return layout.at(dims - from_right).own(value) if value.shape[-from_right] == layout.size else NotImplemented


def of_own_rows(me: Rows, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`f` of own rows of all operands: a plain local tensor, or NotImplemented."""
    layout = me.rows
    from_right = me.dim() - layout.dim
    local_args = [operand(value, layout, from_right) for value in args]
    local_kwargs = {name: operand(value, layout, from_right) for name, value in kwargs.items()}
    if any(value is NotImplemented for value in (*local_args, *local_kwargs.values())):
        return NotImplemented
    return f(*local_args, **local_kwargs)


def one(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A function of one tensor; the other arguments are numbers."""
    me = args[0] if args else None
    if not isinstance(me, Rows) or kwargs or len(args) > 1:
        return several(f, args, kwargs)
    return like(me, f(me.local))


def several(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if _may_be_in_place(args, kwargs):
        return NotImplemented
    if not kwargs and len(args) == 2 and type(args[1]) in NUMBERS and isinstance(args[0], Rows):
        return like(args[0], f(args[0].local, args[1]))
    me = first_rows(args, kwargs)
    if me is None or kwargs.get("out") is not None:
        return NotImplemented
    made = of_own_rows(me, f, args, kwargs)
    return NotImplemented if made is NotImplemented else like(me, made)


def _may_be_in_place(args: Any, kwargs: Any) -> bool:
    """Whether this may change a tensor of which this worker has all rows: `F.relu(x, True)`."""
    is_told = kwargs.get("inplace") or any(value is True for value in args[1:])
    return bool(is_told) and any(isinstance(value, Rows) and value.source is not None for value in args)


def moved(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`to`, `cpu`, `cuda`: what this worker has whole is whole on the other device, too."""
    me = args[0]
    whole = me.at_hand if isinstance(me, Rows) else None
    if whole is None or f(me.local.narrow(me.rows.dim, 0, 0), *args[1:], **kwargs).device == me.device:
        return several(f, args, kwargs)
    return Rows.of_source(f(whole, *args[1:], **kwargs), me.rows)


def like(me: Rows, made: Any) -> Any:
    """The result of an elementwise function, given own rows of it."""
    if made is me.local:  # as `x.float()` of a float tensor, or a change in place
        return me
    if not isinstance(made, torch.Tensor):  # a text or a flag; the places of `torch.where(mask)` are of own rows
        return NotImplemented if isinstance(made, tuple) else made
    return Rows(made, me.rows.at(made.dim() - me.dim() + me.rows.dim))


def in_place(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Changes own rows: views of the same memory see it, as in one process."""
    me = args[0] if args else None
    if not isinstance(me, Rows):  # rows that are written into a plain tensor
        return NotImplemented
    if me.source is not None:  # it may be in memory that the script's dataset holds
        return NotImplemented
    return NotImplemented if of_own_rows(me, f, args, kwargs) is NotImplemented else me


def filled(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A new tensor of the same shape that does not depend on the values: equal on all workers, so it is a whole one."""
    me = args[0] if args else None
    if not isinstance(me, Rows) or not is_contiguous(me):  # random numbers come in the order of memory
        return NotImplemented
    return f(me.local.new_empty(()).expand(me.shape), *args[1:], **kwargs)


def asked_contiguous(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return NotImplemented if kwargs or len(args) > 1 else is_contiguous(args[0])


def contiguous(f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if kwargs or len(args) > 1:
        return NotImplemented
    me = args[0]
    return me if is_contiguous(me) else Rows(me.local.clone(memory_format=torch.contiguous_format), me.rows)


def is_contiguous(me: Rows) -> bool:
    """As `is_contiguous` of the whole tensor. The same on all workers: a single row is contiguous by itself."""
    step = 1
    for whole, own, stride in zip(
        reversed(me.shape), reversed(me.local.shape), reversed(me.local.stride()), strict=True
    ):
        if whole != 1 and stride != step:
            return False
        step *= own
    return True


knows(ONE, one)
knows("to cpu cuda", moved, (torch.Tensor,))
knows("is_complex is_floating_point is_signed element_size", one)
knows("is_contiguous", asked_contiguous)
knows("contiguous", contiguous)
knows(SEVERAL, several)
knows(" ".join(f"{name}_" for name in f"{ONE} {SEVERAL}".split() if not name.startswith("__")), in_place)
knows(IN_PLACE, in_place)
knows("zeros_like ones_like full_like empty_like rand_like randn_like randint_like", filled)
knows("new_zeros new_ones new_full new_empty new_tensor", filled)
