"""Proves that a module may be computed in slices, and learns how its outputs are put together.

At the first call of its kind the module is run twice without gradients, with batch norm and dropout in eval mode (or
all of it, where it draws random numbers): on the whole batch, and on the worker's slice. Where they agree, the
comparison says what each output is (rows of the batch, a mean, a sum, the same everywhere). Where no way of cutting
the arguments makes them agree, samples are mixed or the batch is not where it was looked for, and the run stops before
a wrong number is printed.

Nothing of the script's state is changed by it: random streams, buffers, attributes and training flags are put back.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parameter import is_lazy

from paceline.comm.group import Group
from paceline.errors import NotSplitError
from paceline.script import streams, tree
from paceline.script.algebra import Split
from paceline.script.averages import Averages
from paceline.script.sliced import Plan, Role, cut_leaves, role_by_shape

# Rounding of the same sum in another order, relative to the largest value; far below what mixed samples change.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
TIES = 1e-2  # of integers (an argmax) may flip by rounding


COMPARABLE = (int, float, str, bytes, type(None))
FAILED = object()  # in the place of an output


@dataclass(frozen=True, slots=True)
class Seen:
    """What one call was seen to do."""

    output: Any
    states: dict[tuple[str, str], torch.Tensor]  # attributes that it left a new tensor in: (module's path, name)
    buffers: dict[str, torch.Tensor]  # those that it changed
    drew: bool  # random numbers
    error: str = ""


class Proof:
    """Learns plans. Every worker calls it at the same call, and all come to the same plan or the same error."""

    def __init__(
        self,
        group: Group,
        batch_dim: int,
        split_for_norms: Callable[[Split], AbstractContextManager[None]],
        averages: Averages,
    ) -> None:
        """`split_for_norms` tells synchronised batch norms, for a while, that they see a slice."""
        self.group, self.batch_dim, self._split_for_norms = group, batch_dim, split_for_norms
        self._all_eval = True
        self._averages = averages

    def __call__(self, plain: Callable[..., Any], module: nn.Module, given: Any, leaves: list[Any]) -> Plan | None:
        """The plan for calls like this one; None where every worker is to compute it whole: no argument has a batch, or
        it cannot be sliced and is no place where the script's work is (evaluation, or a head behind a sliced call)."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotSplitError(
                f"{describe(module)} is called inside a torch.func transform, which cannot be split over workers.",
                advice=f"Run it whole on every worker: --whole {type(module).__name__}",
            )
        hypotheses = list(ways_to_cut(leaves, self.batch_dim))
        if not hypotheses:
            return None
        subject = getattr(module, "_orig_mod", module)  # a compiled module is proven uncompiled: no extra compilation
        # As it was called, but for batch norm and dropout; where it draws random numbers all the same, in eval mode.
        self._all_eval = not module.training
        whole = self._observe(plain, subject, given)
        if any(self._agree(not self._all_eval and (whole.drew or whole.output is FAILED))):
            self._all_eval = True
            whole = self._observe(plain, subject, given)
        if any(self._agree(whole.output is FAILED)):
            batch_leaf, cuts = hypotheses[0]
            return Plan(batch_leaf, cuts, None)  # it runs in training mode only: its outputs are judged by shape
        random = self._random_leaves(plain, subject, given, whole)
        trouble = ""
        for batch_leaf, cuts in hypotheses:
            split = Split.of(self.group, leaves[batch_leaf].shape[cuts[batch_leaf]])
            with torch.no_grad(), self._split_for_norms(split):
                piece = self._observe(plain, subject, cut_leaves(given, leaves, cuts, split))
            roles = self._roles(piece.output, whole.output, random, split)
            proven = roles is not None and None not in roles
            if all(self._agree(proven)):
                self._mind_buffers(piece, whole, module)
                return Plan(batch_leaf, cuts, self._common(roles), self._states(piece, whole, split, module))
            why = "" if proven else self._why(piece, whole)
            trouble = trouble or next(filter(None, self.group.gather_objects(why, "the proof")), "")
        refusal = self._refusal(module, given, leaves, hypotheses[0], trouble)
        behind = any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in leaves)
        if torch.is_grad_enabled() and module.training and not behind:
            raise refusal
        self.group.pulse.notice(f"{describe(module)} cannot be computed in slices: every worker computes it whole.")
        return None

    def _observe(self, plain: Callable[..., Any], module: nn.Module, given: Any, *, shift: bool = False) -> Seen:
        """One call that leaves no trace. `shift` makes it draw other random numbers than an unshifted one."""
        with undisturbed(module, all_eval=self._all_eval):
            if shift:
                torch.rand(1)
            before = streams.snapshot()
            kept = {path: dict(m.__dict__) for path, m in module.named_modules()}
            old = {name: buffer.clone() for name, buffer in _own_buffers(module)}
            self._averages.begin()
            try:
                output = plain(module, *given[0], **given[1])
            except Exception as error:
                return Seen(FAILED, {}, {}, False, f"it raised {type(error).__name__}: {error}")
            finally:
                self._averages.end()
            states = {
                (path, name): value
                for path, m in module.named_modules()
                for name, value in m.__dict__.items()
                if isinstance(value, torch.Tensor) and value is not kept[path].get(name)
            }
            new = {n: b.clone() for n, b in _own_buffers(module) if n not in old or not torch.equal(b, old[n])}
            return Seen(output, states, new, streams.drawn_since(before))

    def _roles(self, piece: Any, whole: Any, random: set[int], split: Split) -> list[Role | None] | None:
        """The role of each output, None where there is none; None altogether where the outputs are of another make.
        Every worker calls this, also one whose slice failed: what is not rows is compared collectively."""
        wholes, pieces = tree.leaves(whole), tree.leaves(piece)
        fine = tree.structure(piece) == tree.structure(whole) and piece is not FAILED
        roles: list[Role | None] = []
        values: list[Any] = []
        for i, target in enumerate(wholes):
            own = pieces[i] if fine else None
            dim = _row_dim(own, target, split) if isinstance(target, torch.Tensor) else None
            role = None
            if i in random:
                role = role_by_shape(own, split)
            elif dim is not None:
                rows = target.narrow(dim, split.start, split.mine) if split.mine else target.narrow(dim, 0, 1)
                role = Role("rows", dim) if close(own, rows) else None
            roles.append(role)
            divisor = self._averages.divisor_of(own)  # of the last call observed: this worker's piece
            counted = None if divisor is None else float(divisor) * (split.mine > 0)
            values.append((_host(own), split.share, split.mine, counted) if dim is None else None)
        # What is not rows is the same on all workers, a mean or a sum: one exchange of the values tells.
        for i, column in enumerate(zip(*self.group.gather_objects(values, "the proof"), strict=True)):
            if roles[i] is None and None not in column:
                roles[i] = _blend_role(wholes[i], list(column))
        return roles if fine else None

    def _states(self, piece: Seen, whole: Seen, split: Split, module: nn.Module) -> tuple[tuple[str, str, Role], ...]:
        """The attributes that the call leaves tensors in, with their roles: they are outputs, too."""
        keys = sorted(whole.states)
        pieces = tuple(piece.states.get(key) for key in keys)
        roles = self._roles(pieces, tuple(whole.states[key] for key in keys), set(), split) or []
        roles = self.group.gather_objects(roles, "the proof")[0]
        for (path, name), role in zip(keys, roles, strict=True):
            if role is None:
                self.group.pulse.notice(
                    f"{describe(module)} leaves a tensor in its attribute {f'{path}.{name}'.lstrip('.')}: it is of "
                    "worker 0's slice. Return it from the model to have it of the whole batch."
                )
        return tuple((*key, role) for key, role in zip(keys, roles, strict=True) if role is not None)

    def _mind_buffers(self, piece: Seen, whole: Seen, module: nn.Module) -> None:
        for name, value in whole.buffers.items():
            if not close(piece.buffers.get(name), value):
                self.group.pulse.notice(
                    f"{describe(module)} changes its buffer {name} by the rows that it sees: each worker "
                    "keeps its own, and they are averaged when the model is next evaluated or saved."
                )

    def _random_leaves(self, plain: Callable[..., Any], module: nn.Module, given: Any, whole: Seen) -> set[int]:
        """Outputs that are drawn anew at each call even in eval mode (a sampled latent): they cannot be compared."""
        if not whole.drew:
            return set()
        again = self._observe(plain, module, given, shift=True)
        pairs = zip(tree.leaves(whole.output), tree.leaves(again.output), strict=True)
        return {i for i, (a, b) in enumerate(pairs) if isinstance(b, torch.Tensor) and not close(a, b)}

    def _agree(self, value: bool) -> list[bool]:
        return self.group.gather_objects(value, "the proof")

    def _common(self, roles: list[Role | None] | None) -> tuple[Role, ...]:
        """Rank 0's roles; a worker may see another dimension only where sizes coincide."""
        return tuple(self.group.gather_objects(roles, "the proof")[0])

    def _why(self, seen: Seen, seen_whole: Seen) -> str:
        if seen.output is FAILED:
            return f"on a slice {seen.error}"
        piece, whole = seen.output, seen_whole.output
        names, wholes, pieces = tree.paths(whole, "output"), tree.leaves(whole), tree.leaves(piece)
        opaque = [w for w in wholes if not isinstance(w, (torch.Tensor, *COMPARABLE))]
        if opaque:
            return f"it returns a {type(opaque[0]).__name__}, whose tensors cannot be seen from outside"
        if len(wholes) != len(pieces):
            return f"it returns {len(wholes)} values on the batch but {len(pieces)} on a slice"
        for name, a, b in zip(names, wholes, pieces, strict=True):
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                return f"{name} is {tuple(a.shape)} on the batch and {tuple(b.shape)} on a slice, and the values differ"
        return "its values differ"

    def _refusal(
        self,
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        hypothesis: tuple[int, dict[int, int]],
        why: str,
    ) -> NotSplitError:
        batch_leaf, cuts = hypothesis
        names = tree.paths(given[0], "argument ") + tree.paths(given[1], "argument ")
        shape, dim = tuple(leaves[batch_leaf].shape), cuts[batch_leaf]
        return NotSplitError(
            f"{describe(module)} gives other results in slices than on the whole batch: {why or 'the values differ'}.\n"
            f"It was cut along dimension {dim} of {names[batch_leaf]}, shape {shape}: either the batch is another "
            f"dimension, or the module mixes samples.",
            advice="If the batch is dimension 1 (sequence first), add --batch-dim 1. To let every worker see only its "
            f"own slice, as under DDP: --view slice. To run this module whole on every worker: "
            f"--whole {type(module).__name__}",
        )


def initialise_lazy(plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> None:
    """Lazy parameters take their shapes, and their first values from the script's stream, at the first call."""
    if any(is_lazy(p) for p in module.parameters()):
        flags = [(m, m.training) for m in module.modules()]
        module.eval()
        with torch.no_grad():
            plain(module, *args, **kwargs)
        for m, training in flags:
            m.training = training


def describe(module: nn.Module) -> str:
    return f"The module {type(getattr(module, '_orig_mod', module)).__name__}"


def close(a: Any, b: torch.Tensor) -> bool:
    """Equal up to rounding."""
    if not isinstance(a, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    if not a.is_floating_point() and not a.is_complex():
        return bool((a != b).double().mean() <= TIES)
    tolerance = TOLERANCE.get(a.dtype, 1e-3)
    if torch.is_autocast_enabled(a.device.type) or (a.is_cuda and torch.backends.cuda.matmul.allow_tf32):
        tolerance = TOLERANCE[torch.bfloat16]
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return bool((a - b).abs().max() <= tolerance * b.abs().max() + 1e-12)


@contextlib.contextmanager
def undisturbed(module: nn.Module, *, all_eval: bool = True) -> Iterator[None]:
    """Eval mode (or batch norm and dropout alone in it), no gradients, no output; afterwards everything of the script's
    is as it was."""
    modules = list(module.modules())
    attributes = [m.__dict__ | {"_buffers": dict(m._buffers)} for m in modules]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    before = streams.snapshot()
    for m in modules:
        if all_eval or isinstance(m, (_BatchNorm, _DropoutNd)):
            m.__dict__["training"] = False
        m.__dict__["_compiled_call_impl"] = None  # no compilation for calls that nobody will make again
    try:
        with (
            torch.no_grad(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        for m, kept in zip(modules, attributes, strict=True):
            m.__dict__.clear()
            m.__dict__.update(kept)
        with torch.no_grad():
            for buffer, kept_value in buffers:
                buffer.copy_(kept_value)
        streams.restore(before)


def ways_to_cut(leaves: list[Any], batch_dim: int) -> Iterator[tuple[int, dict[int, int]]]:
    """Ways to cut the arguments, likeliest first: (the leaf that says the batch, {leaf: dimension})."""
    tensors = {i: leaf for i, leaf in enumerate(leaves) if _can_be_cut(leaf)}
    seen: list[dict[int, int]] = []

    def new(cuts: dict[int, int]) -> bool:
        if cuts in seen:
            return False
        seen.append(cuts)
        return True

    for first, leaf in tensors.items():
        if leaf.dim() <= batch_dim:
            continue
        batch = leaf.shape[batch_dim]
        plain = {
            i: dim
            for i, t in tensors.items()
            if t.shape[(dim := batch_dim if t.dim() > batch_dim else 0)] == batch
            and (t.dim() > batch_dim or t.dim() == 1)
        }
        others = {i: list(t.shape) for i, t in tensors.items() if i not in plain}
        deeper = plain | {i: shape.index(batch) for i, shape in others.items() if batch in shape}
        without = [{i: d for i, d in plain.items() if i != left} for left in reversed(plain) if left != first]
        for cuts in [plain, deeper, *without, {first: batch_dim}]:
            if new(cuts):
                yield first, cuts


def _own_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Floating-point buffers but batch norm's, which are known to be of the slice."""
    for path, m in module.named_modules():
        for name, buffer in m._buffers.items() if not isinstance(m, _BatchNorm) else ():
            if buffer is not None and buffer.is_floating_point():
                yield f"{path}.{name}".lstrip("."), buffer


def _can_be_cut(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.layout is torch.strided


def _row_dim(piece: Any, whole: torch.Tensor, split: Split) -> int | None:
    """The dimension along which a piece is a slice of the whole."""
    if not isinstance(piece, torch.Tensor) or piece.dim() != whole.dim():
        return None
    differing = [d for d in range(whole.dim()) if piece.shape[d] != whole.shape[d]]
    if len(differing) == 1 and whole.shape[differing[0]] == split.batch:
        return differing[0] if piece.shape[differing[0]] == max(split.mine, 1) else None
    if not differing and split.batch == 1 and whole.dim() and whole.shape[0] == 1:
        return 0
    return None


def _host(value: Any) -> Any:
    """The value for a comparison elsewhere; of what cannot be compared, its type."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return value if isinstance(value, COMPARABLE) else (type(value).__name__,)


def _blend_role(target: Any, column: list[Any]) -> Role | None:
    values, shares, mine, divisors = zip(*column, strict=True)
    if any(type(value) is not type(_host(target)) for value in values):
        return None
    if isinstance(target, (str, bytes, bool, type(None))):
        return Role("same") if all(value == target for value in values) else None
    if isinstance(target, (int, float)):
        whole, *pieces = (torch.tensor(float(value), dtype=torch.float64) for value in (target, *values))
    elif isinstance(target, torch.Tensor):
        whole, pieces = target.detach().cpu(), list(values)
    else:
        return None
    if any(piece.shape != whole.shape for piece in pieces):
        return None
    if all(close(piece, whole) for piece in pieces) and whole.dim():
        return Role("same")
    exact = torch.float64 if not whole.is_floating_point() else whole.dtype
    pieces = [piece.to(exact) for piece in pieces]
    if None not in divisors and sum(divisors):
        average = sum(piece * d for piece, d in zip(pieces, divisors, strict=True) if d) / sum(divisors)
        if close(average, whole.to(exact)):
            return Role("average")
    mean = sum(piece * share for piece, share in zip(pieces, shares, strict=True))
    total = sum(piece * (rows > 0) for piece, rows in zip(pieces, mine, strict=True))
    if whole.is_floating_point() and close(mean, whole.to(exact)):
        return Role("mean")
    if close(total, whole.to(exact)):
        return Role("sum")
    return Role("same") if all(close(piece, whole) for piece in pieces) else None
