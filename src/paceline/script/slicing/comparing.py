"""Decides whether two values are equal up to rounding, and how a slice's output relates to the whole batch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from paceline.script import tree
from paceline.script.slicing.crossings import Split
from paceline.script.slicing.plan import Role

# Rounding of the same sum in another order, relative to the largest value; mixing samples changes values far more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
CLEAR = 2e-5  # in float32: a difference between this and the tolerance is rounding, or a small part of another sample
IN_DOUBLE = 1e-5  # rounding in a float64 run of a module that computes some parts in float32
TIES = 1e-2  # fraction of integers (an argmax) that may differ by rounding
COMPARABLE: tuple[Any, ...] = (bool, int, float, str, bytes)


def close(a: Any, b: torch.Tensor, tolerance: float | None = None) -> bool:
    """Equal up to rounding; `tolerance` is relative to the largest value, and defaults to the data type's."""
    if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    if not a.is_floating_point() and not a.is_complex():
        return bool((a != b).double().mean() <= TIES)
    if tolerance is None:
        tolerance = TOLERANCE[torch.bfloat16] if _is_coarse(a) else TOLERANCE.get(a.dtype, 1e-3)
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return bool((a - b).abs().max() <= tolerance * b.abs().max() + 1e-12)


def _is_coarse(tensor: torch.Tensor) -> bool:
    """Whether the tensor was computed in half precision or in TF32, whatever its own data type is."""
    return torch.is_autocast_enabled(tensor.device.type) or (tensor.is_cuda and torch.backends.cuda.matmul.allow_tf32)


def is_float32(output: Any) -> bool:
    """Whether all of it was computed in float32, so that rounding can be told from a real difference."""
    floats = [leaf for leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return all(leaf.dtype is torch.float32 and not _is_coarse(leaf) for leaf in floats)


def _holds_nothing(value: Any) -> bool:
    """Whether an object surely has no tensor: a data type, a class, an object in whose attributes none was found. A
    generator may still make some."""
    if isinstance(value, (torch.dtype, torch.device, type)):
        return True
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, Iterator)


def row_dim(piece: Any, whole: torch.Tensor, split: Split) -> tuple[int | None, int]:
    """The dimension along which a piece is a slice of the whole, with one row per sample or several (time steps), or
    None; and the number of the split of its rows."""
    for number in range(len(split.uneven) + 1):
        if (dim := _row_dim(piece, whole, split.rows_of(number))) is not None:
            return dim, number
    return None, 0


def _row_dim(piece: Any, whole: torch.Tensor, split: Split) -> int | None:
    if not isinstance(piece, torch.Tensor) or piece.dim() != whole.dim():
        return None
    differing = [d for d in range(whole.dim()) if piece.shape[d] != whole.shape[d]]
    if len(differing) == 1 and split.batch and whole.shape[differing[0]] % split.batch == 0:
        many = whole.shape[differing[0]] // split.batch
        return differing[0] if piece.shape[differing[0]] == many * max(split.mine, 1) else None
    if not differing and split.batch == 1 and whole.dim() and whole.shape[0] == 1:
        return 0
    return None


def rows_of(whole: torch.Tensor, dim: int, split: Split, *, spread: bool) -> torch.Tensor:
    """This worker's rows of the whole, or the first sample's if it has none. `spread`: each sample's rows are apart."""
    many = whole.shape[dim] // max(split.batch, 1)
    start, mine = (split.start, split.mine) if split.mine else (0, 1)
    if spread:
        apart = whole.unflatten(dim, (many, split.batch))
        return apart.narrow(dim + 1, start, mine).flatten(dim, dim + 1)
    return whole.narrow(dim, start * many, mine * many)


def on_host(value: Any) -> Any:
    """The value for a comparison on another worker; the type's name if the value cannot be compared."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return value if value.layout is torch.strided else value.to_dense()
    for kind in COMPARABLE:  # converts a subclass (an enum member, a numpy number) to the plain number or text
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    return None if value is None else [type(value).__name__]


def blend_role(target: Any, column: list[Any], tolerance: float | None = None) -> Role | None:
    values, shares, mine, divisors = zip(*column, strict=True)
    if any(type(value) is not type(on_host(target)) for value in values):
        return None
    if isinstance(target, (str, bytes, bool, type(None))):
        return Role("same") if all(value == target for value in values) else None
    if isinstance(target, int) and all(value == target for value in values):
        return Role("same")
    if isinstance(target, (int, float)):
        whole, *pieces = (torch.tensor(float(value), dtype=torch.float64, device="cpu") for value in (target, *values))
        tolerance = tolerance or (CLEAR if isinstance(target, float) else None)  # the value may come from float32
    elif isinstance(target, torch.Tensor):
        whole, pieces = on_host(target), list(values)
    else:
        return Role("same") if _holds_nothing(target) and all(value == on_host(target) for value in values) else None
    if any(piece.shape != whole.shape for piece in pieces):
        return None
    if all(close(piece, whole, tolerance) for piece in pieces) and whole.dim():
        return Role("same")
    exact = torch.float64 if not whole.is_floating_point() else whole.dtype
    pieces = [piece.to(exact) for piece in pieces]
    if None not in divisors and not sum(divisors) and whole.isnan().all():
        return Role("average")  # over no targets: NaN in one process as well
    if None not in divisors and sum(divisors):
        average = sum(piece * d for piece, d in zip(pieces, divisors, strict=True) if d) / sum(divisors)
        if close(average, whole.to(exact), tolerance):
            return Role("average")
    mean = sum(piece * share for piece, share in zip(pieces, shares, strict=True))
    total = sum(piece * (rows > 0) for piece, rows in zip(pieces, mine, strict=True))
    if whole.is_floating_point() and close(mean, whole.to(exact), tolerance):
        return Role("mean")
    if close(total, whole.to(exact), tolerance):
        return Role("sum")
    return Role("same") if all(close(piece, whole.to(exact), tolerance) for piece in pieces) else None
