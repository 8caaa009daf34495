"""Kinds of all tensors of a call, by induction over the operations that it makes on A, B and C."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from paceline.script.proof import known
from paceline.script.proof.kinds import AVERAGE, MAX, MEAN, MIN, MIXED, PLACE, SAME, Kind, Parts, rows
from paceline.script.proof.probing import SHAPE_ONLY, SIZES, Probe
from paceline.script.proof.reads import JOINT_READ, OWN, UNDECIDED_READ, how_joint
from paceline.script.proof.recorder import CannotTry, Note, Op, require_same
from paceline.torch_private import arguments_of, changes_arguments, is_view

HOST = ("_local_scalar_dense", "equal", "is_nonzero", "item")
EMPTY = ("empty", "new_empty", "_empty_affine")
CHOICES = ("_fused_sdp_choice", "_scaled_dot_product", "_flash_attention", "_efficient_attention", "_cudnn_rnn")
INDEXED = ("index", "_unsafe_index", "gather", "index_put", "index_put_", "_index_put_impl_", "scatter", "scatter_add")
PASSES_AVERAGE = ("detach", "alias", "clone", "_to_copy", "view", "_unsafe_view", "unsqueeze", "squeeze", "lift_fresh")
# Of a number of flags: what a comparison with 0, and with their number, is over all rows.
OF_COUNTS = {
    "eq": (MIN, MIN),
    "ne": (MAX, MAX),
    "gt": (MAX, None),
    "le": (MIN, None),
    "lt": (None, MAX),
    "ge": (None, MIN),
}
SEEDED = torch.Tag.nondeterministic_seeded
DYNAMIC = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_tried: dict[Any, list[Kind]] = {}  # by operation, kinds, shapes and numbers: found once in a process


class Induction:
    """Follows three traces. `kind` holds what was found, by the number of a tensor in A."""

    def __init__(self, parts: Parts, *, draws_in_numpy: bool = False) -> None:
        self.parts, self.kind = parts, dict[int, Kind]()
        self._given_measures = len(parts.sizes)  # of those that a call chooses no worker knows the others' rows
        self._draws_in_numpy = draws_in_numpy  # so that Python may make tensors of random rows
        self.adds_to_average = False  # another operation works on a cross-entropy's mean
        # Python reads what the module holds (a counter in a buffer), or a joint number, by which it may branch.
        self.reads_state = False
        self.read = OWN  # how the number of the last read is made: see `reads`
        self.averages = 0  # cross-entropies so far; the number of one is the `of` of its kind
        self._has_norms = False  # batch norms, so that B's rows are not A's
        self._probe = Probe(parts)
        self._random: set[int] = set()  # tensors that were drawn, or computed from such
        self._why: dict[int, str] = {}  # of tensors that are mixed: the operation that made them so
        self._counts: dict[int, list[int]] = {}  # sums of flags: how many flags there are

    def why(self, number: int) -> str:
        return self._why.get(number, "")

    def follow(self, traces: Sequence[list[Op]]) -> None:
        """CannotTry if Python code reads a value of samples, or if an operation cannot be tried."""
        a, b, c = traces
        require_same(a, b)
        require_same(a, c)
        for ops in zip(a, b, c, strict=True):
            self._follow(ops)

    def of(self, note: Note) -> Kind:
        return self.kind[note.number]

    def _follow(self, ops: Sequence[Op]) -> None:
        op = ops[0]
        if op.in_norm and not self._has_norms:
            self._has_norms, self._probe = True, Probe(self.parts, has_norms=True)
        leaves = [step.leaves() for step in ops]
        if len({len(found) for found in leaves}) > 1:
            raise CannotTry(f"{_shown(op)} gets another number of arguments on other numbers of rows")
        columns = list(zip(*leaves, strict=True))
        notes = [column for column in columns if isinstance(column[0], Note)]
        for column in notes:
            if column[0].number not in self.kind:
                self.kind[column[0].number] = self._stray(column, op)
        given = [self.of(column[0]) for column in notes]
        if op.func is None and not notes:  # a mark
            return
        if op.func is None or op.name in HOST:
            self._read(op, notes)
            return
        self._set(ops, self._judge(ops, columns, notes, given), notes)

    def _stray(self, column: Sequence[Note], op: Op) -> Kind:
        """A tensor that no operation has made: a constant that Python made, or a tensor of the script."""
        if any(note.needs_grad for note in column):
            raise CannotTry(f"{_shown(op)} uses a tensor of the script that has a gradient and is no argument")
        values = [note.value for note in column]
        if any(value is None for value in values):
            kind = self.parts.along(*(note.shape for note in column))
            if kind == SAME:
                return SAME
            self._why[column[0].number] = _shown(op)
            return MIXED
        return self._constant(values, may_be_random=self._draws_in_numpy)

    def _constant(self, values: Sequence[Any], *, may_be_random: bool = False) -> Kind:
        """A constant whose rows differ depends on their place, and sums and means are by chance."""
        kind = self.parts.judge(values, _same)
        if kind.name == "rows" and kind.dim is not None:
            apart = values[0].unflatten(kind.dim, (kind.outer, self.parts.sizes[kind.of][0], -1))
            first = apart.narrow(kind.dim + 1, 0, 1)
            is_uniform = values[0].numel() > 0 and _same(first.expand_as(apart), apart)
            return kind if is_uniform or may_be_random else PLACE
        return PLACE if kind == MIXED or kind.name in ("sum", "mean") else kind

    def _read(self, op: Op, notes: Sequence[Sequence[Note]]) -> None:
        for column in notes:
            note = column[0]
            kind = self.of(note)
            self.read = OWN if kind.is_same or kind.name == "place" else how_joint(kind)  # it may ask for a size
            if not self.read or (self.read != OWN and op.name not in (JOINT_READ, UNDECIDED_READ)):
                raise CannotTry(f"its Python code reads a value that depends on samples{_at(op)}")
            if self.read == OWN and note.number in self._random:
                raise CannotTry(f"its Python code reads a random number{_at(op)}, on which operations may depend")
            is_compared = self.read != OWN and note.dtype is torch.bool  # with the proof's, when it is read
            self.reads_state = self.reads_state or not (note.constant or is_compared)

    def _judge(
        self, ops: Sequence[Op], columns: Sequence[Any], notes: Sequence[Sequence[Note]], given: Sequence[Kind]
    ) -> list[Kind]:
        op = ops[0]
        if op.name == "cat" and len(self.parts.sizes) > 1:
            self._put_together(ops, given)
        outs = [tuple(step.outs[i] for step in ops) for i in range(len(op.outs))]
        by_shape = [self._along(column) for column in outs]
        if op.name.startswith(EMPTY):  # not initialised: what is written to it later decides
            outer = next((kind.outer for kind in given if kind.is_rows), 1)
            return [k if k.dim is None else k._replace(outer=outer) for k in by_shape]
        same_settings = not _differing(ops)
        if (
            op.name in SHAPE_ONLY
            and same_settings
            and (notes[0][0].number if notes else None) is not None
            and len(notes) == 1
        ):
            like = given[0]
            return [
                k if k.dim is None else k._replace(outer=like.outer if like.dim is not None else 1) for k in by_shape
            ]
        if SEEDED in op.func.tags and not op.name.startswith(CHOICES):
            if not same_settings:
                raise CannotTry(f"it draws random numbers for its rows in a way that cannot be split, by {_shown(op)}")
            return self._drawn(op, given, by_shape)
        if MIXED in given:
            return [MIXED] * len(outs)
        if all(kind.is_same or kind.name == "place" for kind in given):
            return self._of_constants(ops, columns, outs, given, by_shape)
        if any(tag in op.func.tags for tag in DYNAMIC) and not _has_known_shape(op):
            return self._chosen(ops, given) or [MIXED] * len(outs)
        if op.name.startswith(("as_strided", "resize")):  # depends on memory, which a tensor that stands for it lacks
            return [MIXED] * len(outs)
        if any(kind.name == "average" for kind in given):
            if op.name in PASSES_AVERAGE:
                return [given[0]] * len(outs)
            self.adds_to_average = True
            self.kind.update({c[0].number: MEAN for c in notes if self.of(c[0]).name == "average"})
        places = [column for column, kind in zip(notes, given, strict=True) if kind.name == "place"]
        places = [] if op.name in known.BAGS else places  # their rule looks at them
        if any(self._along(c).dim is not None and not (op.name in INDEXED and _counts(c[0])) for c in places):
            return [MIXED] * len(outs)  # a pattern of rows may fit to A, B and C by chance
        same = all(a == b == c for a, b, c in columns if not isinstance(a, Note))
        found = self._of_counts(ops)
        if found is None and same_settings:
            found = known.judge(op, self.of, known.Results(self.parts, ops), same_numbers=same)
        moved = same and is_view(op.func) and not changes_arguments(op.func)
        if found is None and moved and given[0].varies and given[0].dim is None:  # the same elements in another shape
            return [given[0]] * len(outs)
        if found is None:
            key = self._key(ops, columns)
            if key not in _tried:
                try:
                    _tried[key] = self._probe(ops, self.of)
                except Exception as error:  # torch's own, of any type: an operation that cannot be tried is not proven
                    raise CannotTry(
                        f"{_shown(op)} cannot be tried alone: {str(error).splitlines()[0][:100]}"
                    ) from error
            found = [one if _fits(one, shape) else MIXED for one, shape in zip(_tried[key], by_shape, strict=False)]
        if len(found) < len(outs):
            raise CannotTry(f"{_shown(op)} gives another number of results alone")
        return found

    def _chosen(self, ops: Sequence[Op], given: Sequence[Kind]) -> list[Kind] | None:
        """Of a graph's rows those that a mask chooses: rows again, whose number A, B and C tell."""
        op = ops[0]
        index = op.args[1] if op.name == "index" else []
        at = [dim for dim, mask in enumerate(index) if mask is not None]
        if len(self.parts.sizes) < 2 or len(at) != 1 or index[at[0]].dtype is not torch.bool:
            return None
        one, mask = given
        a, b, c = (o.outs[0].shape[at[0]] for o in ops)
        if mask != rows(0, of=mask.of) or one not in (rows(at[0], of=mask.of), Kind("index", at[0], of=mask.of)):
            return None
        return [one._replace(of=self._measure((a, b, c)))] if a == b + c and b and c else None

    def _put_together(self, ops: Sequence[Op], given: Sequence[Kind]) -> None:
        """Links and loops one after another: a measure of its own."""
        op = ops[0]
        dim = op.args[1] if len(op.args) > 1 else 0
        along = all(kind.name in ("rows", "index") and kind.dim == dim and kind.outer == 1 for kind in given)
        if along and isinstance(dim, int) and all(isinstance(note, Note) for note in op.args[0]):
            rows_of = [self.parts.sizes[kind.of][0] for kind in given]
            if [note.shape[dim] for note in op.args[0]] == rows_of:  # one for each, and not several
                a, b, c = (o.outs[0].shape[dim] for o in ops)
                self._measure((a, b, c), tuple(kind.of for kind in given))

    def _measure(self, sizes: tuple[int, int, int], joined: tuple[int, ...] = ()) -> int:
        self.parts, number = self.parts.and_measure(sizes, joined)
        self._probe = Probe(self.parts, has_norms=self._has_norms)
        return number

    def _of_counts(self, ops: Sequence[Op]) -> list[Kind] | None:
        """A number of flags that is compared with none or with all of them."""
        op = ops[0]
        if op.name == "sum" and len(op.args) == 1 and op.args[0].dtype is torch.bool:
            self._counts[op.outs[0].number] = [prod(one.args[0].shape) for one in ops]
        if op.name not in OF_COUNTS or not isinstance(op.args[0], Note) or op.args[0].number not in self._counts:
            return None
        numbers, many = [one.args[1] for one in ops], self._counts[op.args[0].number]
        of_none, of_all = OF_COUNTS[op.name]
        return [of_all] if of_all and numbers == many else [of_none] if of_none and numbers == [0, 0, 0] else None

    def _along(self, column: Sequence[Any]) -> Kind:
        if not isinstance(column[0], Note):
            return SAME
        return self.parts.along(*(note.shape for note in column)) or MIXED

    def _drawn(self, op: Op, given: Sequence[Kind], by_shape: list[Kind]) -> list[Kind]:
        """Of random numbers: a draw that `draws` makes has the rows that its shape says. Any other one has none."""
        if op.name == "native_dropout" and op.args[2] is False:
            return [given[0], SAME]
        if any(kind.varies or kind.outer > 1 for kind in given):
            return [MIXED] * len(by_shape)
        placed = op.placed and all(kind.of < self._given_measures for kind in by_shape)
        if op.name == "multinomial" and not given[0].is_rows:  # placed by the rows of its weights
            placed = False
        if not placed and (any(kind.is_rows for kind in given) or any(kind != SAME for kind in by_shape)):
            raise CannotTry(f"it draws random numbers for its rows in a way that cannot be split, by {_shown(op)}")
        return by_shape

    def _of_constants(
        self,
        ops: Sequence[Op],
        columns: Sequence[Any],
        outs: Sequence[Any],
        given: Sequence[Kind],
        by_shape: list[Kind],
    ) -> list[Kind]:
        same = all(a == b == c for a, b, c in columns if not isinstance(a, Note))
        if same and all(kind.is_same for kind in given):
            return [SAME if kind == SAME else MIXED for kind in by_shape]
        found = []
        for column in outs:
            if isinstance(column[0], Note) and all(note.value is not None for note in column):
                found.append(self._constant([note.value for note in column]))
            elif isinstance(column[0], Note):
                found.append(self._expanded(ops, column, given))
            else:
                found.append(SAME if column[0] == column[1] == column[2] else MIXED)
        return found

    def _expanded(self, ops: Sequence[Op], column: Sequence[Note], given: Sequence[Kind]) -> Kind:
        """A weight that is repeated for each row (a class token)."""
        if all(kind.is_same for kind in given):
            return self._probe(ops, self.of)[0]
        return MIXED

    def _key(self, ops: Sequence[Op], columns: Sequence[Any]) -> Any:
        told: list[Any] = []
        for column in columns:
            first = column[0]
            if isinstance(first, Note):
                values = [note.value for note in column]
                known = tuple(map(_digest, values)) if all(v is not None for v in values) else ()
                told.append((self.of(first), first.dtype, *(note.shape for note in column), known))
            else:
                told.append(repr(column))
        return (str(ops[0].func), self.parts, self._has_norms, tuple(told), tuple(ops[0].kwargs))

    def _set(self, ops: Sequence[Op], kinds: list[Kind], notes: Sequence[Sequence[Note]]) -> None:
        op = ops[0]
        random = SEEDED in op.func.tags and not op.name.startswith(CHOICES) and op.name != "native_dropout"
        random = random or any(column[0].number in self._random for column in notes)
        mixed_by = next((self._why[c[0].number] for c in notes if c[0].number in self._why), None)
        for number in op.also:  # statistics of batch norms; noise that the operation has drawn
            self.kind[number] = SAME if op.name in known.NORMS else kinds[0]
        for out, kind in zip(op.outs, kinds, strict=False):
            if not isinstance(out, Note):
                continue
            if kind == AVERAGE and op.name.startswith("nll_loss"):
                kind, self.averages = kind._replace(of=self.averages), self.averages + 1
            self.kind[out.number] = kind
            if random:
                self._random.add(out.number)
            if kind == MIXED:
                self._why[out.number] = mixed_by or _shown(op)
            for other in op.others:
                if other not in self.kind:
                    continue
                before = self.kind[other]
                if kind.name != "rows" or before.name != "rows" or (kind.dim is None) != (before.dim is None):
                    self.kind[other] = MIXED
                    self._why[other] = mixed_by or _shown(op)


def _fits(kind: Kind, shape: Kind) -> bool:
    """Whether a kind that was found fits to the shapes of the results."""
    return shape != MIXED and kind.dim == shape.dim


def _has_known_shape(op: Op) -> bool:
    """Whether an index has numbers only; a mask chooses as many rows as it likes."""
    chosen = [leaf for leaf in op.leaves()[1:] if isinstance(leaf, Note)]
    return op.name.startswith("index") and not any(n.dtype in (torch.bool, torch.uint8) for n in chosen)


def _counts(note: Note) -> bool:
    """Whether a constant is 0, 1, 2 … along one dimension: the rows as they are."""
    value = note.value
    return value is not None and torch.equal(value.flatten(), torch.arange(value.numel(), device=value.device))


def _differing(ops: Sequence[Op]) -> bool:
    """Whether numbers that are no sizes are others in A, B and C: `eps=1 / len(x)`."""
    op = ops[0]
    for place, argument in enumerate(arguments_of(op.func)):
        if argument.name in SIZES:
            continue
        given = [step.args[place] if place < len(step.args) else step.kwargs.get(argument.name) for step in ops]
        if type(given[0]) in (int, float, bool) and not given[0] == given[1] == given[2]:
            return True
    return False


def _digest(value: torch.Tensor) -> Any:
    flat = (torch.view_as_real(value.resolve_conj()) if value.is_complex() else value).reshape(-1)
    if not flat.numel():
        return ()
    return tuple(flat[:16].tolist()), float(flat.double().sum()), float(flat.double().square().sum())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Of constants, which were computed alike: to the last digits, of which half precision has none to spare."""
    if one.shape != other.shape:
        return False
    if one.dtype not in known.FLOATS:
        return torch.equal(one, other)
    return torch.allclose(one.double(), other.double(), rtol=4 * torch.finfo(one.dtype).eps, atol=0, equal_nan=True)


def _shown(op: Op) -> str:
    return f"{op.name}{_at(op)}"


def _at(op: Op) -> str:
    return f" ({op.line})" if op.line else ""
