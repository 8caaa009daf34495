"""Notes every ATen operation of a trial, in forward and in backward: C++ code, attention and autograd.Functions are all
seen. A read of a value by Python (`item`, `numpy`, `tolist`) is an operation, too.

Tensors are numbered by the memory that they show (storage, offset, sizes, strides). So a view, an alias that autograd
saved and the tensor itself have one number, as long as they show the same. A change in place gives a new number.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from paceline.comm.call_site import NOT_THE_SCRIPT
from paceline.script.draws.rows import Draws
from paceline.script.proof.bounds import require_sizes
from paceline.torch_private import (
    SCRIPT_OBJECTS,
    DispatchMode,
    address_of,
    changes_arguments,
    graph_node_running,
    graph_nodes_made,
    is_view,
    writes_to,
)

AS_VIEW = torch.ops.aten.view.default
KNOWN_VALUES = 1 << 20  # elements: larger constants are not kept
READS = ("numpy", "tolist", "data_ptr", "__dlpack__")


def words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(text.split())


# Operations by which layout, precision or memory change, and no number: real calls may have others than trials.
LAYOUT = words(
    """
    _to_copy clone alias detach contiguous empty empty_like empty_strided empty_permuted new_empty
    new_empty_strided _unsafe_view _reshape_alias lift_fresh copy_ view reshape
    """
)


class CannotTry(Exception):
    """A trial that cannot be made, or followed; the text says why, with "it" for the module."""


class Note:
    """A tensor at one moment. `value`: its numbers, if they are integers, or known without any sample or weight."""

    __slots__ = ("constant", "dtype", "needs_grad", "number", "shape", "stray", "value")

    def __init__(
        self, number: int, tensor: torch.Tensor, value: torch.Tensor | None, *, stray: bool, constant: bool
    ) -> None:
        self.number, self.shape, self.dtype, self.value = number, tuple(tensor.shape), tensor.dtype, value
        self.constant = constant  # depends on no sample, and on nothing that the module holds
        self.stray = stray  # came from outside: a constant that Python made, a tensor of the script
        self.needs_grad = tensor.requires_grad and not tensor.is_leaf


class Op:
    """One operation. `others`: the numbers of tensors that share memory with what it has changed in place."""

    __slots__ = ("also", "args", "func", "in_norm", "kwargs", "line", "name", "others", "outs", "placed")

    def __init__(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        self.func, self.name, self.args, self.kwargs = func, name, args, kwargs
        self.outs: list[Note | Any] = []
        self.others: list[int] = []
        self.also: list[int] = []  # numbers of what it has changed and does not return
        self.line, self.placed, self.in_norm = "", False, False

    def leaves(self) -> list[Any]:
        return list(leaves_in((*self.args, *self.kwargs.values())))


def require_same(ops: list[Op], others: list[Op]) -> None:
    """CannotTry if two trials do not make the same operations."""
    for op, other in zip(ops, others, strict=False):
        if (op.name, len(op.outs)) != (other.name, len(other.outs)):
            at = f" ({op.line})" if op.line else ""
            raise CannotTry(f"it computes {op.name}{at} on some numbers of rows, and {other.name} on others")
    if len(ops) != len(others):
        raise CannotTry("it computes other operations on other numbers of rows")


class Recorder(DispatchMode):
    """Notes the operations of one trial. `guarded`: the storages of the script's weights, which must not change."""

    active: Any = None  # the mode that marks are told
    in_norm = 0  # calls of F.batch_norm under way
    work = 0  # operations noted so far, in all trials

    def __init__(self, draws: Draws, guarded: dict[int, str], *, lines: bool) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self._draws, self._guarded, self._lines = draws, guarded, lines
        self._numbers: dict[Any, int] = {}
        self._next = itertools.count()
        self._by_storage: dict[int, list[Any]] = {}
        self._keep: list[Any] = []  # memory that is freed would be used again, for other tensors
        self._line_of_node: dict[int, str] = {}  # by the number of the node in the graph
        self._known: set[int] = set()  # numbers of tensors whose values depend on no sample and no weight

    def number(self, tensor: torch.Tensor) -> int:
        key = _key(tensor)
        if key not in self._numbers:
            self._numbers[key] = next(self._next)
            self._keep.append(tensor)
            self._by_storage.setdefault(key[0], []).append(key)
        return self._numbers[key]

    def note(self, tensor: torch.Tensor) -> Note:
        before = len(self._keep)
        number = self.number(tensor)
        stray = len(self._keep) > before
        constant = number in self._known or stray
        is_known = constant or not (tensor.is_floating_point() or tensor.is_complex())
        can_be_kept = tensor.numel() <= KNOWN_VALUES and tensor.layout is torch.strided and not tensor.is_meta
        value = tensor.detach().clone() if is_known and can_be_kept else None
        return Note(number, tensor, value, stray=stray, constant=constant)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        if (slices := _slices_of(func, args, kwargs)) is not None:
            made = args[0]
            for one, *numbers in slices:
                made = self.__torch_dispatch__(one, types, (made, *numbers))
            return made
        changed = [t for t in writes_to(func, args, kwargs) if t is not None] if changes_arguments(func) else []
        for tensor in changed:
            if (name := self._guarded.get(_storage(tensor))) is not None:
                raise CannotTry(f"it changes the parameter {name} in its forward")
        noted, args_noted = (AS_VIEW, args[:2]) if _is_only_a_view(func, args, kwargs) else (func, args)
        op = Op(noted, noted.overloadpacket.__name__, _mapped(args_noted, self._noted), _mapped(kwargs, self._noted))
        op.placed, op.in_norm = not self._draws.on, Recorder.in_norm > 0
        if self._lines:
            op.line = self._line()
        known = all(leaf.number in self._known for leaf in op.leaves() if isinstance(leaf, Note))
        require_sizes(op.name, args)
        made = func(*args, **kwargs)
        for tensor in changed:
            self._renew(tensor, op)
        outs = list(leaves_in((made,)))
        for out in outs:
            if isinstance(out, torch.Tensor):
                self.number(out)  # made here: no tensor from outside
        if (
            known
            and torch.Tag.nondeterministic_seeded not in func.tags
            and not op.name.startswith(("empty", "new_emp"))
        ):
            self._known.update(self.number(out) for out in (*outs, *changed) if isinstance(out, torch.Tensor))
        else:
            self._known.difference_update(self.number(tensor) for tensor in changed)
        op.outs = [self._noted(out) for out in (outs or changed)]
        op.also = [self.number(tensor) for tensor in changed if all(tensor is not out for out in outs)] if outs else []
        self.ops.append(op)
        Recorder.work += 1
        return made

    def _line(self) -> str:
        """The line that makes an operation; in a backward, the line of the forward whose gradient it computes."""
        node = graph_node_running()
        if node is not None and (line := self._line_of_node.get(node._sequence_nr())):
            return line
        line = self._line_of_node[graph_nodes_made() - 1] = script_line()
        return line

    def known(self, tensor: torch.Tensor) -> int | None:
        """The tensor's number; None if nothing was computed with it yet."""
        return self._numbers.get(_key(tensor))

    def all_numbers(self) -> set[int]:
        """Of the tensors met so far."""
        return set(self._numbers.values())

    def is_constant(self, tensor: torch.Tensor) -> bool:
        """Whether its values depend on no sample, and on nothing that the module holds."""
        number = self.known(tensor)
        return number is None or number in self._known

    def mark(self, name: str) -> None:
        self.ops.append(Op(None, name, [], {}))

    def read(self, how: str, tensor: torch.Tensor) -> None:
        """Python code looks at the values."""
        op = Op(None, how, [self.note(tensor)], {})
        op.line = script_line() if self._lines else ""
        self.ops.append(op)

    def _noted(self, value: Any) -> Any:
        if isinstance(value, SCRIPT_OBJECTS):
            raise CannotTry(f"it computes with an object of C++ code, whose numbers cannot be seen ({script_line()})")
        return self.note(value) if isinstance(value, torch.Tensor) else value

    def _renew(self, tensor: torch.Tensor, op: Op) -> None:
        """The tensor was changed: what it shows has a new number."""
        key = _key(tensor)
        self.number(tensor)
        op.others += [self._numbers[other] for other in self._by_storage[key[0]] if other != key]
        self._numbers[key] = next(self._next)

    def __enter__(self) -> Any:
        self._outer, Recorder.active = Recorder.active, self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        Recorder.active = self._outer
        super().__exit__(*raised)


class Names(DispatchMode):
    """Lists only which operations a call makes: the same for a trial and for a real call in slices, inside which draws
    and batch norms are computed otherwise."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws
        self.found: list[str] = []
        self.numbers: list[Any] = []  # that the operations get

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if self._draws.on and not Recorder.in_norm and (names := _counted_names(func)):
            self.found += names
            self.found += _told(args)
            self.numbers += _numbers(names, args, kwargs or {})
        return made

    def mark(self, name: str) -> None:
        self.found.append(name)

    def __enter__(self) -> Any:
        self._outer, Recorder.active = Recorder.active, self
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        Recorder.active = self._outer
        super().__exit__(*raised)


def names_of(ops: list[Op]) -> list[str]:
    """What `Names` lists, of a trial."""
    found: list[str] = []
    for op in filter(is_counted, ops):
        found += [op.name] if op.func is None else _counted_names(op.func)
        found += _told(op.args)
    return found


def numbers_of(traces: Sequence[list[Op]]) -> list[Any]:
    """The numbers that operations get on any number of rows, in the order of `Names.numbers`; NotImplemented for one
    that is not the same on all of them."""
    found = []
    for ops in zip(*(filter(is_counted, ops) for ops in traces), strict=True):
        if ops[0].func is not None:
            numbers = [_numbers(_counted_names(op.func), op.args, op.kwargs) for op in ops]
            found += [a if a == b == c else NotImplemented for a, b, c in zip(*numbers, strict=True)]
    return found


def _numbers(names: tuple[str, ...], args: Any, kwargs: Any) -> list[Any]:
    if names[0] in MAY_FUSE and names != ("add",):
        return []
    return [value for value in leaves_in((*args, *kwargs.values())) if type(value) in (int, float)]


def _told(args: Any) -> list[str]:
    """What else counts of an operation: how many tensors it gets in a list, and which of its first numbers is 0, with
    which it may do nothing (`roll(x, 0)`)."""
    found: list[str] = []
    for i, value in enumerate(args):
        if isinstance(value, (list, tuple)) and value:
            if isinstance(value[0], (torch.Tensor, Note)) and i == 0:
                found.append(str(len(value)))
            value = value[0]
        if type(value) in (int, float) and value == 0:
            found.append(f"0 at {i}")
    return found


def is_counted(op: Op) -> bool:
    """Whether a real call makes this operation, too: the model's own, and no change of layout."""
    if op.func is None:
        return not op.args  # a mark, and no read
    return not op.placed and not op.in_norm and bool(_counted_names(op.func))


_names: dict[Any, tuple[str, ...]] = {}
# Which of the two torch takes depends on the layout of memory.
MAY_FUSE = ("mm", "bmm", "add", "addmm", "baddbmm", "linear")
FUSED = {"addmm": ("mm", "add"), "baddbmm": ("bmm", "add"), "linear": ("mm", "add")}


def _counted_names(func: Any) -> tuple[str, ...]:
    if func not in _names:
        name = func.overloadpacket.__name__
        is_layout = name in LAYOUT or func.namespace == "profiler" or (is_view(func) and not changes_arguments(func))
        _names[func] = () if is_layout else FUSED.get(name, (name,))
    return _names[func]


def is_counted_name(func: Any) -> bool:
    """Whether an operation computes numbers, and is no view and no change of layout."""
    return bool(_counted_names(func))


@contextmanager
def norm() -> Iterator[None]:
    """Around a call of F.batch_norm, which sees the whole batch in a real call."""
    mark("batch_norm")
    with hidden():
        yield


def mark(name: str) -> None:
    """What counts as an operation and is none: a script's own backward looks like any other in its forward."""
    if Recorder.in_norm or Recorder.active is None:
        return
    Recorder.active.mark(name)


@contextmanager
def hidden() -> Iterator[None]:
    """Operations that are no part of the model's own list."""
    Recorder.in_norm += 1
    try:
        yield
    finally:
        Recorder.in_norm -= 1


@contextmanager
def reads_noted(recorder: Recorder) -> Iterator[None]:
    """Functions by which Python sees a tensor's numbers without an operation."""

    def noting(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if Recorder.active is recorder:
                recorder.read(name, self)
            return plain(self, *args, **kwargs)

        return read

    own = {name: vars(torch.Tensor).get(name) for name in READS}
    for name in READS:
        setattr(torch.Tensor, name, noting(getattr(torch.Tensor, name), name))
    try:
        yield
    finally:
        for name, plain in own.items():
            if plain is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, plain)


_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def script_line() -> str:
    """The innermost line that is running and is neither torch's nor ours, as file:line."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if line := line_in(frame):
            return line
        frame = frame.f_back
    return ""


def line_in(frame: Any) -> str:
    """The line that a frame is at, as file:line; empty in a file of torch or of ours."""
    file, name = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
    if file.startswith((_TORCH, _OURS, "<eval_with_key>")) or name.startswith(NOT_THE_SCRIPT):
        return ""
    return f"{os.path.basename(file)}:{frame.f_lineno}"


def _is_only_a_view(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether `as_strided` shows all of a tensor, in order: so autograd writes to a view that a layer changes in place
    (a normalization before `LeakyReLU(inplace=True)`)."""
    if func is not torch.ops.aten.as_strided.default or kwargs:
        return False
    tensor, sizes, strides, *offset = args
    is_here = not offset or offset[0] in (None, tensor.storage_offset())
    dense = torch.empty(sizes, device="meta").stride()
    return is_here and tensor.is_contiguous() and tuple(strides) == dense and math.prod(sizes) == tensor.numel()


def _slices_of(func: Any, args: Any, kwargs: Any) -> list[tuple[Any, ...]] | None:
    """The slices that make the same view as `as_strided`, which tells nothing of rows. By it autograd walks back
    through an assignment to a part of a tensor (`spectrum[:, :, :8] = …`)."""
    if func is not torch.ops.aten.as_strided.default or kwargs or not args[0].is_contiguous() or not args[0].numel():
        return None
    tensor, sizes, strides, *offset = args
    at = tensor.storage_offset() if not offset or offset[0] is None else offset[0]
    found: list[tuple[Any, ...]] = []
    left, made, dim = at - tensor.storage_offset(), tensor.detach(), 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        start, left = divmod(left, stride)
        many, step = (sizes[dim], strides[dim] // stride) if dim < len(sizes) and strides[dim] % stride == 0 else (0, 0)
        if not 0 <= start < size:
            return None
        if many < 1 or step < 1 or start + (many - 1) * step >= size:
            found.append((torch.ops.aten.select.int, dim, start))
        else:
            if (start, many) != (0, size):
                found.append((torch.ops.aten.slice.Tensor, dim, start, start + (many - 1) * step + 1, step))
            dim += 1
    for one, *numbers in found:
        made = one(made, *numbers)
    if not found or (*made.shape, made.storage_offset()) != (*sizes, at):
        return None
    moves = zip(sizes, strides, made.stride(), strict=True)
    return found if all(size == 1 or one == other for size, one, other in moves) else None


def _storage(tensor: torch.Tensor) -> int:
    return address_of(tensor.untyped_storage()) if tensor.layout is torch.strided else id(tensor)


def _key(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return (id(tensor), 0, (), ())
    return (_storage(tensor), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def storages_of(tensors: dict[str, torch.Tensor]) -> dict[int, str]:
    return {_storage(tensor): name for name, tensor in tensors.items()}


def _mapped(value: Any, put: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_mapped(item, put) for item in value]
    if isinstance(value, dict):
        return {key: _mapped(item, put) for key, item in value.items()}
    return put(value)


def mapped(value: Any, put: Callable[[Note], Any]) -> Any:
    """The arguments with `put(note)` in the place of each note."""
    if isinstance(value, Note):
        return put(value)
    if isinstance(value, list):
        return [mapped(item, put) for item in value]
    if isinstance(value, dict):
        return {key: mapped(item, put) for key, item in value.items()}
    return value


def leaves_in(value: Any) -> Iterator[Any]:
    """The items of nested lists and tuples, as operations of torch get and give them."""
    for item in value:
        if isinstance(item, (list, tuple)):
            yield from leaves_in(item)
        else:
            yield item
