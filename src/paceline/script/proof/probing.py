"""Tries one operation on random numbers that have its arguments' kinds, on A, B and C, and judges the results.

One operation cannot hide a difference behind a large number, a mask, half precision or a tolerance, as a whole model
can. Numbers are float64, of several sizes: what varies with all rows is also tried far larger than the rows, so that
a small factor inside the operation (`alpha=1e-12`) does not hide it. Where an argument varies, only sums, products and
quotients are tried, which random numbers decide; a comparison or a maximum of such a number is mixed. Integers are
those of the samples, since an index must be valid; in one try all are equal, as those of other samples may be. Those
that an operation only moves all differ: of equal ones (a mask) nobody sees where they went. An operation that gets an
integer is tried on more rows than that, too, and on longer other dimensions: it may count rows (`triu(diagonal=-8)`),
and what it leaves out may depend on both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import torch

from paceline.script.proof.kinds import MIXED, PLACE, SAME, Kind, Parts
from paceline.script.proof.recorder import Note, Op, leaves_in, mapped, words
from paceline.torch_private import arguments_of, changes_arguments, is_view

EXACT = 1e-11  # relative to the largest number, in float64
ROUNDING = 4e-15  # of one operation on numbers: a factor that depends on the rows must not pass for it
COARSE = 1e-4  # for operations without float64
MOST = 1 << 20  # elements of a tensor on which an operation is tried
HALVES = (torch.float32, torch.float16, torch.bfloat16)
# Values are only moved: one try with numbers that all differ decides.
MOVES = words(
    """
    cat stack repeat flip roll constant_pad_nd index_select select_backward slice_backward unfold_backward
    tile expand slice_scatter select_scatter diagonal_backward repeat_interleave
    """
)
INDEX = ("index", "repeats")  # their arguments that say what to move where
AS_DTYPE = torch.ops.aten.view.dtype  # the same bytes as other numbers
RATIONAL = words(
    """
    add sub rsub mul div neg reciprocal addcmul addcdiv square mm bmm addmm baddbmm addmv mv dot sum mean clone
    _to_copy copy copy_ add_ sub_ mul_ div_ neg_ addcmul_ addcdiv_ addmm_ lerp lerp_ nll_loss_backward
    nll_loss2d_backward mse_loss mse_loss_backward sum_to_size convolution convolution_backward select_backward
    slice_backward index_put index_put_ index_add index_add_ embedding_dense_backward native_layer_norm_backward
    native_group_norm_backward linear true_divide diff trace cumsum outer addr fill fill_ where masked_fill
    masked_fill_ zero_ mul_backward l1_loss_backward smooth_l1_loss_backward huber_loss_backward
    binary_cross_entropy_backward threshold_backward gelu_backward tanh_backward sigmoid_backward silu_backward
    _softmax_backward_data _log_softmax_backward_data native_dropout_backward elu_backward hardtanh_backward
    leaky_relu_backward softplus_backward hardswish_backward hardsigmoid_backward mish_backward
    log_sigmoid_backward zeros_like ones_like full_like new_zeros new_ones new_full
    """
)
# Arguments that say how large a tensor is, or where to cut it.
SIZES = words(
    """
    size N C HxW start end length split_size dim_size num_weights self_size steps
    """
)
COUNTED = SIZES | {"dim", "dims", "dim0", "dim1"}  # … and which of its dimensions
SHAPE_ONLY = words(
    """
    zeros_like ones_like full_like empty_like new_zeros new_ones new_full new_empty
    """
)


class Probe:
    """Tries operations. `has_norms`: batch norms came before. In a trial they see only their own rows, so that integers
    of the same rows (flags of a comparison) differ in A, B and C."""

    def __init__(self, parts: Parts, *, has_norms: bool = False) -> None:
        self._parts, self._has_norms = parts, has_norms

    def __call__(self, ops: Sequence[Op], kind: Callable[[Note], Kind]) -> list[Kind]:
        """The kinds of the results. RuntimeError (or another one of torch's) if the operation cannot be tried."""
        op = ops[0]
        notes = [leaf for leaf in op.leaves() if isinstance(leaf, Note)]
        varies = [note for note in notes if kind(note).varies and not (kind(note) == PLACE and _is_known(note))]
        moves = op.name in MOVES or (is_view(op.func) and not changes_arguments(op.func))
        if varies and not moves and op.name not in RATIONAL and not _is_linear(op, varies):
            return [MIXED] * len(op.outs)
        if varies and any(isinstance(out, Note) and _is_coarser(out, varies) for out in op.outs):
            return [MIXED] * len(op.outs)  # whether a number is 0, or its whole part
        ways: list[dict[str, Any]] = [{"distinct": True}]
        if not moves:
            ways = [{"size": 1.0}, {"size": 1e3, "positive": True}, {"size": 1e-3, "varying": 1e10}]
        if self._has_norms:
            ways = [way | {"cut": True} for way in ways]
        if any(kind(note).is_rows and not _is_number(note) for note in notes) and not (moves and not _has_index(op)):
            ways.append(ways[0] | {"collide": True})  # which rows an index has in common is the luck of few samples
        if any(kind(note).is_same and not note.constant and not _is_number(note) for note in notes):
            ways.append(ways[0] | {"other": True})  # a counter or a flag of the module's, which will change
        found: list[Kind] | None = None
        for seed, way in enumerate(ways):
            try:
                kinds = self._try(ops, kind, seed, way)
            except (RuntimeError, ValueError, IndexError, NotImplementedError):
                if "other" not in way:
                    raise
                continue  # an index, which must be a valid one
            if found is None:
                found = [k or SAME for k in kinds]
            else:
                found = [k if other in (None, k) else MIXED for k, other in zip(found, kinds, strict=True)]
        if found is not None and (largest := _counted(ops, [kind(note) for note in notes], found)) > 1:
            shapes = [note.shape for note in (*notes, *op.outs) if isinstance(note, Note)]
            times = max(1, min(largest // 2 + 1, MOST // max(1, *map(prod, shapes))))
            sizes = tuple((a * times, b * times, c * times) for a, b, c in self._parts.sizes)
            larger = Probe(Parts(sizes, self._parts.joined), has_norms=self._has_norms)
            way, longer = ways[0] | {"times": times}, [[max(s, 2 * largest) if s > 1 else s for s in d] for d in shapes]
            tried = [larger._try(ops, kind, 0, way)]
            if times * max(map(prod, longer)) <= 4 * MOST:
                with suppress(RuntimeError, ValueError, IndexError, NotImplementedError):  # a size that must be so
                    tried.append(larger._try(ops, kind, 0, way | {"beyond": largest}))
            for kinds in tried:
                found = [k if other in (None, k) else MIXED for k, other in zip(found, kinds, strict=True)]
        by_samples = any(kind(note).is_rows and not _is_number(note) for note in notes)
        # Integers are those of few samples: that nothing depends on them is luck (`seen[y] = True`).
        return [MIXED if by_samples and k.is_same else k for k in found or []]

    def _try(
        self, ops: Sequence[Op], kind: Callable[[Note], Kind], seed: int, way: dict[str, Any]
    ) -> list[Kind | None]:
        try:
            return self._run(ops, kind, seed, torch.float64, EXACT, way)
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            pass
        try:
            return self._run(ops, kind, seed, torch.float64, EXACT, way | {"unit": True})  # in (0, 1)
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            return self._run(ops, kind, seed, torch.float32, COARSE, way)

    def _run(
        self, ops: Sequence[Op], kind: Callable[[Note], Kind], seed: int, wide: torch.dtype, tolerance: float, way: Any
    ) -> list[Kind | None]:
        """None for a result that is all zeros, which fits to any kind."""
        moved = _moved(ops[0]) if "distinct" in way else ()
        numbers = [
            _Numbers(self._parts, torch.Generator().manual_seed(seed * 1000 + i), wide, way).make(
                kind(column[0]),
                self._of_size(column, kind(column[0]), way),
                is_moved=any(column[0] is note for note in moved),
            )
            for i, column in enumerate(_columns(ops))
        ]
        results = []
        for part, op in enumerate(ops):
            given = iter([column[part] for column in numbers])
            put = lambda value, given=given: mapped(value, lambda note: next(given).clone())  # noqa: E731
            args = [_widened(arg, wide) for arg in put(op.args)]
            kwargs = {name: _widened(arg, wide) for name, arg in put(op.kwargs).items()}
            func = torch.ops.aten.reshape.default if op.name in ("view", "_unsafe_view") else op.func
            with torch.no_grad():
                made = func(*args, **kwargs)
            results.append(_flat(made))
        if tolerance == EXACT and torch.Tag.pointwise in ops[0].func.tags:
            tolerance = ROUNDING  # nothing is added up
        equal = _equality(tolerance)
        outers = {kind(column[0]).outer for column in _columns(ops) if kind(column[0]).is_rows}
        return [
            None if _are_zeros(values) else _judged(self._parts, values, equal, outers)
            for values in zip(*results, strict=True)
        ]

    def _of_size(self, column: Sequence[Note], kind: Kind, way: dict[str, Any]) -> list[Note]:
        """The notes with as many times the rows as the parts have, and with other dimensions of more than `beyond`."""
        times, beyond = way.get("times", 1), way.get("beyond", 0)
        sizes = self._parts.sizes[kind.of if kind.dim is not None else 0]
        return [_grown(note, kind, size // times, times, beyond) for note, size in zip(column, sizes, strict=True)]


def _counted(ops: Sequence[Op], kinds: Sequence[Kind], found: Sequence[Kind]) -> int:
    """The largest number that an operation may count rows by; 0 if it has none."""
    op = ops[0]
    if is_view(op.func) or PLACE in kinds or not any(kind.is_rows for kind in found):  # of views shapes tell: `growth`
        return 0
    named = [argument.name for argument in arguments_of(op.func)]
    numbers = [
        [value for name, value in (*zip(named, o.args, strict=False), *o.kwargs.items()) if name not in COUNTED]
        for o in ops
    ]
    plain = [[value for value in leaves_in(given) if not isinstance(value, Note)] for given in numbers]
    if not plain[0] == plain[1] == plain[2]:  # sizes, which grow with the rows
        return 0
    return max((abs(value) for value in plain[0] if type(value) is int and abs(value) < 1 << 31), default=0)


def _grown(note: Note, kind: Kind, rows: int, times: int, beyond: int) -> Note:
    """The same with each of its `rows` as many times, and the entries of other dimensions often enough."""
    often = {dim: beyond // size + 1 for dim, size in enumerate(note.shape) if 1 < size <= beyond}
    piece = 1
    if kind.dim is not None:
        often[kind.dim], piece = times, note.shape[kind.dim] // (kind.outer * rows)
    grown, shape, value = copy.copy(note), list(note.shape), note.value
    for dim, many in often.items():
        shape[dim] *= many
        if value is not None:
            apart = value.unflatten(dim, (-1, piece if dim == kind.dim else 1))
            value = apart.repeat_interleave(many, dim).flatten(dim, dim + 1)
    grown.shape, grown.value = tuple(shape), value
    return grown


def _is_known(note: Note) -> bool:
    return note.value is not None and not note.dtype.is_floating_point


def _is_number(note: Note) -> bool:
    return note.dtype.is_floating_point or note.dtype.is_complex


def _is_coarser(out: Note, varying: list[Note]) -> bool:
    """Whether a result has fewer values than what it is made of: a flag of a sum, an integer of a float."""
    if out.dtype is torch.bool:
        return True
    return not _is_number(out) and any(_is_number(note) for note in varying)


def _is_linear(op: Op, varying: list[Note]) -> bool:
    """Whether these are the gradients that a backward is given, in which it is linear."""
    if not op.name.endswith("_backward"):
        return False
    arguments = zip(arguments_of(op.func), op.args, strict=False)
    return all(any(note is value and a.name.startswith("grad") for a, value in arguments) for note in varying[:1])


class _Numbers:
    """Random numbers of a kind, for A, B and C."""

    def __init__(self, parts: Parts, generator: torch.Generator, wide: torch.dtype, way: dict[str, Any]) -> None:
        self._parts, self._generator, self._wide, self._way = parts, generator, wide, way

    def make(self, kind: Kind, notes: Sequence[Note], *, is_moved: bool = False) -> list[torch.Tensor]:
        a = notes[0]
        if is_moved and kind.name == "rows" and not _is_number(a):
            made = torch.arange(prod(a.shape), device="cpu").reshape(a.shape)
            return [made, *(self._parts.cut(made, kind, part) for part in (1, 2))]
        if not a.dtype.is_floating_point and not a.dtype.is_complex:
            return self._integers(kind, notes)
        if all(note.value is not None for note in notes) and (not a.stray or kind.varies or kind.is_same):
            return [_wide(note.value, self._wide) for note in notes]
        whole, first, last = self._parts.sizes[kind.of]
        far = self._way.get("varying", 1.0) if kind.varies else 1.0
        if kind.name == "rows" or kind.name == "index":
            made = self._drawn(a.shape, a.dtype)
            return [made, *(self._parts.cut(made, kind, part) for part in (1, 2))]
        if kind.name == "share":
            made = self._drawn(a.shape, a.dtype) * far
            return [made, *(self._parts.cut(made, kind, part) * self._parts.share(part, kind.of) for part in (1, 2))]
        one, other = self._drawn(a.shape, a.dtype) * far, self._drawn(a.shape, a.dtype) * far
        if kind.name == "sum":
            return [one + other, one, other]
        if kind.name in ("mean", "average"):
            return [(one * first + other * last) / whole, one, other]
        return [self._drawn(note.shape, note.dtype) * far for note in notes]

    def _integers(self, kind: Kind, notes: Sequence[Note]) -> list[torch.Tensor]:
        if kind.name == "sum" and notes[0].dtype is not torch.bool:
            one, other = (
                torch.randint(1, 50, notes[0].shape, generator=self._generator, device="cpu") for _ in range(2)
            )
            return [t.to(notes[0].dtype) for t in (one + other, one, other)]
        if any(note.value is None for note in notes):
            raise RuntimeError("a large tensor of integers is not kept")
        values: list[torch.Tensor] = [note.value.cpu() for note in notes]  # type: ignore[union-attr]
        if "other" in self._way and kind.is_same and not notes[0].constant:
            a = values[0]
            other = ~a if a.dtype is torch.bool else a.flatten().roll(1).view(a.shape) if a.numel() > 1 else a + 1
            return [other] * 3
        if not kind.is_rows or not values[0].numel() or not self._way.keys() & {"collide", "cut"}:
            return values
        if "collide" not in self._way:
            made = values[0]
        elif values[0].dtype is torch.bool:
            made = torch.rand(values[0].shape, generator=self._generator, device="cpu") < 0.5
        else:
            made = torch.full_like(values[0], values[0].flatten()[0].item())
        return [made, *(self._parts.cut(made, kind, part) for part in (1, 2))]

    def _drawn(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_complex:
            return torch.randn(shape, generator=self._generator, dtype=torch.complex128, device="cpu")
        way = self._way
        if "distinct" in way:
            count = torch.Size(shape).numel()
            first = 1 + torch.rand((), generator=self._generator, device="cpu")
            return (torch.arange(count, dtype=self._wide, device="cpu") + first).reshape(shape)
        if "unit" in way:
            return torch.rand(shape, generator=self._generator, dtype=self._wide, device="cpu") * 0.8 + 0.1
        if "positive" in way:
            return (torch.rand(shape, generator=self._generator, dtype=self._wide, device="cpu") + 0.5) * way["size"]
        return torch.randn(shape, generator=self._generator, dtype=self._wide, device="cpu") * way["size"]


def _wide(value: Any, wide: torch.dtype) -> torch.Tensor:
    found: torch.Tensor = value.cpu()
    return found.to(wide) if found.is_floating_point() else found


def _columns(ops: Sequence[Op]) -> list[tuple[Any, ...]]:
    notes = [[leaf for leaf in op.leaves() if isinstance(leaf, Note)] for op in ops]
    return list(zip(*notes, strict=True))


def _widened(value: Any, wide: torch.dtype) -> Any:
    """Arguments that name a precision or a device."""
    if isinstance(value, torch.dtype):
        return wide if value in HALVES else value
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _flat(made: Any) -> list[Any]:
    if isinstance(made, (list, tuple)):
        return [leaf for item in made for leaf in _flat(item)]
    return [made]


def _are_zeros(values: Sequence[Any]) -> bool:
    """Whether A, B and C hold nothing but zeros, of one size: a mask has hidden everything."""
    if not all(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values):
        return False
    return len({value.shape for value in values}) == 1 and not any(bool(value.any()) for value in values)


def _judged(parts: Parts, values: Sequence[Any], equal: Callable[[Any, Any], bool], outers: set[int]) -> Kind:
    if not isinstance(values[0], torch.Tensor):
        return Kind("rows") if values[0] == values[1] == values[2] else MIXED
    return parts.judge(values, equal, outers)


def _moved(op: Op) -> list[Note]:
    """What the operation moves, and does not look into."""
    arguments = zip(arguments_of(op.func), op.args, strict=False)
    given = [value for argument, value in arguments if argument.name not in INDEX]
    return [leaf for leaf in leaves_in(given) if isinstance(leaf, Note) and op.func is not AS_DTYPE]


def _has_index(op: Op) -> bool:
    return len(_moved(op)) < sum(isinstance(leaf, Note) for leaf in op.leaves())


def _equality(tolerance: float) -> Callable[[Any, Any], bool]:
    def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
        if one.shape != other.shape:
            return False
        if not one.numel() or torch.equal(one, other):
            return True
        if not one.is_floating_point() and not one.is_complex():
            return False
        one, other = (t if t.is_complex() else t.double() for t in (one, other))
        odd = ~(one.isfinite() & other.isfinite())
        if odd.any():
            if not torch.equal(one[odd].nan_to_num(7.0), other[odd].nan_to_num(7.0)) or odd.double().mean() > 0.5:
                return False
            one, other = one[~odd], other[~odd]
        return bool(((one - other).abs() <= tolerance * one.abs().max() + 1e-300).all())

    return equal
