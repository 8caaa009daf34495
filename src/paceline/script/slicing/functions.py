"""Functions of torch on sharded outputs. A function is a small module: the proof says what own rows suffice for.

A function's outputs are rows again, a sum or a mean over the workers, or the same on all of them. What cannot be proven
is computed of all rows. The proof is made once for each kind of call, on some rows of the first worker. Views,
changes in place, elementwise functions and a few others have rules of their own in `script/rows`, which are asked
first: they are faster, and what shares memory with own rows must be a view of the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.script import memory, tree
from paceline.script.proof.guards import number_modes
from paceline.script.proof.plan import Role, SlicePlan
from paceline.script.proof.proof import Proof
from paceline.script.proof.recorder import Recorder, words
from paceline.script.proof.side_effects import Function
from paceline.script.proof.ways import Way, can_be_cut, some_rows
from paceline.script.rows import crossings
from paceline.script.rows.crossings import HALF
from paceline.script.rows.layout import Layout
from paceline.script.rows.tensor import Rows
from paceline.script.slicing.loss_denominators import Averages
from paceline.torch_private import is_being_traced, is_transformed

MOST = 50  # proofs of one function: a number among its arguments may be another one in each call
MANY, FEW = 64, 3  # rows on which a function is proven, and for a look at what it returns
# Operations that raise for no value of their arguments. Of others one worker's rows may be the cause.
NEVER_RAISE = words(
    """
    add sub mul div neg pow exp log sqrt abs mm bmm addmm baddbmm cat stack sum mean amax amin argmax argmin max min
    norm linalg_vector_norm _softmax _log_softmax native_layer_norm sort topk cumsum var std logsumexp mse_loss
    clamp clamp_min clamp_max where eq ne lt le gt ge relu sigmoid tanh gelu
    """
)
NORM = "batch_norm"  # the proof takes it for one that sees all workers' rows, as that in a model's call does
BY_TARGETS = ("cross_entropy", "nll_loss")  # their means are sums over denominators of their own: see `Averages`


@dataclass(frozen=True, slots=True)
class _Found:
    """How a function is computed on own rows."""

    plan: SlicePlan
    dtypes: list[torch.dtype]  # of its results
    may_raise: bool  # because of one worker's rows
    in_float32: bool  # a sum or a mean of numbers of 16 bits: rounded once, when the workers' are added up
    sends_nothing: bool

    @property
    def is_local(self) -> bool:
        """Whether no other worker has to know of the call."""
        return self.sends_nothing and not self.may_raise


class _Nest:
    """Arguments, as a list of leaves and as they are."""

    __slots__ = ("_args", "_kwargs", "is_flat", "leaves", "structure")

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._args, self._kwargs = args, kwargs
        self.leaves: list[Any] = [*args, *kwargs.values()]
        self.is_flat = not any(isinstance(leaf, (tuple, list, dict)) for leaf in self.leaves)
        self.structure: Hashable = (len(args), *kwargs)
        if not self.is_flat:
            self.leaves, self.structure = tree.leaves((args, kwargs)), tree.structure((args, kwargs))

    def rebuilt(self, leaves: list[Any]) -> Any:
        """The same with other leaves."""
        if not self.is_flat:
            return tree.rebuild((self._args, self._kwargs), iter(leaves))
        count = len(self._args)
        return leaves[:count], dict(zip(self._kwargs, leaves[count:], strict=True))


class Functions:
    """What the proof found of functions. Every worker asks for the same functions in the same order."""

    def __init__(self, group: Group, prove: Proof, averages: Averages) -> None:
        self.group, self._prove, self._averages = group, prove, averages
        self._module = Function()
        self._known: dict[Hashable, _Found | None] = {}
        self._proofs: Counter[Callable[..., Any]] = Counter()  # of each function

    def __call__(self, f: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The function's result, computed on own rows; NotImplemented if all rows are needed. Every worker calls it;
        may wait for all of them."""
        name = getattr(f, "__name__", "_")
        if name.endswith("_") or kwargs.get("out") is not None or Recorder.active is not None:
            return NotImplemented  # changes in place, and what Python asks of an object
        nest = _Nest(args, kwargs)
        leaves = nest.leaves
        me = next((leaf for leaf in leaves if isinstance(leaf, Rows)), None)
        if me is None:  # in an object among the arguments
            return NotImplemented
        layout = me.rows
        if any(isinstance(leaf, Rows) and not leaf.rows.has_rows_of(layout) for leaf in leaves):
            return NotImplemented
        try:
            key = f, nest.structure, number_modes(), *[_described(leaf, layout.size) for leaf in leaves]
            found = self._known.get(key)
        except TypeError:  # an argument without a hash
            return NotImplemented
        if key not in self._known or (found is not None and _has_single(layout) and not found.plan.single):
            if not me.numel() or is_being_traced(me.local) or is_transformed():
                return NotImplemented
            self._proofs[f] += 1
            if self._proofs[f] > MOST:
                return NotImplemented
            name = getattr(f, "__name__", str(f))
            checked = f"whether {name} can be computed of each worker's rows"
            with self.group.watch.checking(), self.group.pulse.checking(checked):
                found = self._known[key] = self._find(f, nest, me)
        if found is None or is_transformed():
            return NotImplemented
        if found.is_local:
            return self._compute(f, nest, me, found)
        return self.group.together.do(self._compute, f, nest, me, found)

    def _find(self, f: Callable[..., Any], nest: _Nest, me: Rows) -> _Found | None:
        def plain(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return f(*args, **kwargs)

        is_average, layout = _is_average(f, nest), me.rows
        rows = {i: self._from_first(leaf) for i, leaf in enumerate(nest.leaves) if isinstance(leaf, Rows)}
        for way in _ways(nest.leaves, layout):
            args, kwargs = nest.rebuilt(_sample(nest.leaves, way, layout, rows))
            given = (args, kwargs | {"reduction": "sum"} if is_average else kwargs)
            wholes = tree.leaves(given)
            plan, _ = self._prove.first(plain, self._module, given, wholes, [way])
            if plan is not None:
                break
        else:
            return None
        if plan.draws or plan.states or plan.buffers or NORM in plan.names:
            return None
        if plan.averages:  # of another function than torch's losses: its denominator is not noted
            return None
        if is_average:
            if [role.kind for role in plan.outputs] != ["sum"]:
                return None
            plan.outputs, plan.averages = (Role("average"),), 1
        few = some_rows(given, wholes, plan.cuts, FEW)
        with torch.no_grad():
            made = tree.leaves(f(*few[0], **few[1]))
        inputs = {_memory(leaf) for leaf in tree.leaves(few) if isinstance(leaf, torch.Tensor)}
        if not made or not all(isinstance(one, torch.Tensor) and _memory(one) not in inputs for one in made):
            return None
        dtypes = [one.dtype for one in made]
        sent = [role.kind not in ("rows", "same") for role in plan.outputs]
        halves = any(dtype in HALF and is_sent for dtype, is_sent in zip(dtypes, sent, strict=True))
        memory.return_freed()
        return _Found(plan, dtypes, not NEVER_RAISE.issuperset(plan.names), halves, not any(sent))

    def _from_first(self, leaf: Rows) -> torch.Tensor:
        """Some rows of the first worker, on every worker."""
        chosen = _chosen(leaf.rows).to(leaf.device)
        rows = leaf.local.detach().resolve_conj().resolve_neg()
        if self.group.rank:
            rows = rows.new_empty([len(chosen) if d == leaf.rows.dim else n for d, n in enumerate(rows.shape)])
        else:
            rows = rows.index_select(leaf.rows.dim, chosen)
        self.group.broadcast(rows := rows.contiguous(), "rows to try a function on")
        return rows.requires_grad_(leaf.requires_grad)

    def _compute(self, f: Callable[..., Any], nest: _Nest, me: Rows, found: _Found) -> Any:
        plan, layout = found.plan, me.rows
        local = [self._own(leaf, plan.cuts.get(i), layout) for i, leaf in enumerate(nest.leaves)]
        if found.in_float32:
            local = [x.float() if isinstance(x, torch.Tensor) and x.dtype in HALF else x for x in local]
        args, kwargs = nest.rebuilt(local)
        begins = bool(plan.averages) and not self._averages.watching
        if begins:
            self._averages.begin()
        try:
            made = f(*args, **kwargs)
        finally:
            if begins:
                self._averages.end()
        if found.may_raise and found.sends_nothing:
            self.group.agree()
        if isinstance(made, torch.Tensor):
            return self._joined(made, plan.outputs[0], found.dtypes[0], me)
        pieces = zip(tree.leaves(made), plan.outputs, found.dtypes, strict=True)
        return tree.rebuild(made, iter([self._joined(*piece, me) for piece in pieces]))

    def _own(self, leaf: Any, dim: int | None, layout: Layout) -> Any:
        if isinstance(leaf, Rows):
            return leaf.local
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return crossings.share(leaf, self.group) if dim is None else layout.at(dim).own(leaf)

    def _joined(self, piece: torch.Tensor, role: Role, dtype: torch.dtype, me: Rows) -> torch.Tensor:
        layout = me.rows
        if role.kind == "rows":
            many = piece.shape[role.dim] // me.local.shape[layout.dim]
            outer, inner = (many, 1) if role.spread else (1, many)
            piece = piece.clone() if _memory(piece) == _memory(me.local) else piece  # of a single row
            piece = piece.resolve_conj().resolve_neg() if piece.is_complex() else piece
            return Rows(piece, Layout(layout.split, role.dim, layout.outer * outer, layout.inner * inner, role.order))
        if role.kind == "same":
            return piece
        if role.kind == "average":
            divisor = self._averages.divisor_of(piece)
            assert divisor is not None
            return crossings.mean(piece, divisor, self.group)
        weight = 1.0 if role.kind == "sum" else layout.split.share
        return crossings.blend(piece, weight, self.group, dtype)


def _is_average(f: Callable[..., Any], nest: _Nest) -> bool:
    """Whether this is one of torch's losses that average over the targets that count."""
    args, kwargs = nest.rebuilt(nest.leaves)
    if getattr(f, "__name__", "") not in BY_TARGETS or len(args) > 3 or kwargs.get("reduction", "mean") != "mean":
        return False
    target = args[1] if len(args) > 1 else kwargs.get("target")
    old = kwargs.get("size_average") is not None or kwargs.get("reduce") is not None
    return isinstance(target, torch.Tensor) and not target.is_floating_point() and not old


def _described(leaf: Any, rows: int) -> Hashable:
    """What the key has of an argument: of a tensor which sizes are 1, or as many as the rows; of a factor only whether
    it is 0 or 1, with which an operation may do nothing."""
    if isinstance(leaf, Rows):
        return leaf.rows.dim, leaf.dtype, leaf.requires_grad, *[size == 1 for size in leaf.shape]
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.requires_grad, *[size if size in (1, rows) else 0 for size in leaf.shape]
    return type(leaf), None if type(leaf) is float and leaf not in (0.0, 1.0) and isfinite(leaf) else leaf


def _has_single(layout: Layout) -> bool:
    """Whether a worker has a single row, which code may treat as another case."""
    return min(layout.split.sizes) * layout.outer * layout.inner < 2


def _chosen(layout: Layout) -> torch.Tensor:
    """Some of the first worker's rows, evenly spaced: too few for two on each worker, if one has a single row."""
    count = layout.outer * layout.split.sizes[0] * layout.inner
    many = 2 * layout.split.group.world - 1 if _has_single(layout) else min(MANY, count)
    return torch.tensor([k * count // many for k in range(many)], device="cpu")


def _sample(leaves: list[Any], way: Way, layout: Layout, rows: dict[int, torch.Tensor]) -> list[Any]:
    """The arguments with these rows of the sharded ones, and the same of the others that are cut."""
    found, first = list(leaves), layout.split.sizes[0] * layout.inner
    for i, dim in way[1].items():
        if i in rows:
            found[i] = rows[i]
            continue
        whole = leaves[i].detach().unflatten(dim, (layout.outer, -1)).narrow(dim + 1, 0, first)
        some = whole.flatten(dim, dim + 1).index_select(dim, _chosen(layout).to(whole.device))
        found[i] = some.requires_grad_(leaves[i].requires_grad)
    return found


def _ways(leaves: list[Any], layout: Layout) -> list[Way]:
    """Ways to cut the tensors that are as long as the rows are many: at the same dimension, counted from the left, as
    labels, or from the right, as an operand; wherever they are so long; or not at all."""
    sharded = {i: leaf.rows.dim for i, leaf in enumerate(leaves) if isinstance(leaf, Rows)}
    first = next(iter(sharded))
    dim, from_right, ways = sharded[first], leaves[first].dim() - sharded[first], list[Way]()
    whole = {i: t.shape for i, t in enumerate(leaves) if i not in sharded and can_be_cut(t)}
    whole = {i: shape for i, shape in whole.items() if layout.size in shape}
    left = {i: dim for i, shape in whole.items() if len(shape) > dim and shape[dim] == layout.size}
    right = {i: len(s) - from_right for i, s in whole.items() if len(s) >= from_right and s[-from_right] == layout.size}
    anywhere = {i: tuple(shape).index(layout.size) for i, shape in whole.items()}
    for cuts in (anywhere | left, anywhere | right, left, right, {}):
        if (first, sharded | cuts) not in ways:
            ways.append((first, sharded | cuts))
    return ways


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
