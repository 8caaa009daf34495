"""Proves that a module may be computed in slices, and finds how its outputs are combined.

The module is tried on a few rows (A), on some of them (B) and on the others (C), forward and backward; `induction`
finds what each tensor is. Every worker makes the same proof of the same rows; one exchange makes sure that all of them
found the same. A proof that cannot be made is no proof: the module is not cut, and the reason names the operation and
the line that made it.
"""

from __future__ import annotations

import functools
import traceback
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import NotSplitError, PacelineError
from paceline.script import tree
from paceline.script.draws.rows import Drawn, DrawRule, Draws
from paceline.script.proof import growth, packed, side_effects, surroundings, trial
from paceline.script.proof.arguments import cut_leaves
from paceline.script.proof.backward_hooks import hooked
from paceline.script.proof.conflicts import Conflicts
from paceline.script.proof.graphs import GraphCuts, graph_ways, has_links
from paceline.script.proof.growth import Steps
from paceline.script.proof.induction import Induction
from paceline.script.proof.kinds import MIXED, PLACE, SAME, SHARE, Kind, Parts, rows
from paceline.script.proof.plan import Judgement, Role, SlicePlan, Unbatched, anew, may_be_shared
from paceline.script.proof.reads import Reads, Take, taken
from paceline.script.proof.reasons import describe, refusal, unbatched
from paceline.script.proof.recorder import (
    MAY_FUSE,
    CannotTry,
    Note,
    Recorder,
    is_counted,
    line_in,
    names_of,
    numbers_of,
)
from paceline.script.proof.side_effects import Place, is_in_module
from paceline.script.proof.trial import Traced
from paceline.script.proof.ways import Way, batch_of, fits, knows_more, some_rows, split_of, ways_to_cut
from paceline.script.rows.crossings import Split, memory_order
from paceline.torch_private import is_compiled, parameters_in, uncompiled

FEW = (5, 2)  # rows of A and of B
TRIES = 48  # ways to cut the arguments of one call …
LIKELY, WORK = 6, 8_000  # … or so many, after which trials of so many operations end the search
REPEATED = 2_000  # … as trials of so many operations do that met a cause of which another mode was refused
MANY = 64  # proofs that are kept for modules that are alike
OPAQUE: tuple[Any, ...] = (torch.dtype, torch.device, type)
PLAIN: tuple[Any, ...] = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Part:
    """Stands for the group of a split in one process, as into the rows of B (0) and of C (1)."""

    rank: int
    world: int = 2

    def gather_objects(self, value: Any, what: str) -> list[Any]:
        return [value]


class Proof:
    """Finds plans. Every worker calls it at the same call, and all workers get the same plan or the same reason."""

    def __init__(self, group: Group | Part, batch_dim: int, draws: Draws, parts: int = 0) -> None:
        """`group`: the workers that must find the same. `parts`: of a batch; 0: one for each worker."""
        self.group, self.batch_dim, self._draws = group, batch_dim, draws
        self._split: Any = Part(0, parts) if parts else group
        # How a module's arguments were cut last: in another call as many time steps as samples may hide it.
        self._ways: weakref.WeakKeyDictionary[nn.Module, Way] = weakref.WeakKeyDictionary()
        self._proven: dict[Hashable, tuple[SlicePlan | None, str]] = {}
        # Why the likeliest way to cut a module's arguments was refused, after a whole search: met again in another
        # mode, in the same way, the cause ends the search.
        self._causes: weakref.WeakKeyDictionary[nn.Module, dict[str, str]] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        *,
        all_rows: bool = False,
        compared: bool = True,
        known_as: Hashable = None,
    ) -> Judgement:
        """The plan for calls like this one, or why they cannot be sliced; None if no argument has a batch.
        `all_rows`: on a few rows the module did not compute what it computes on many. `compared`: real calls are
        compared with the proof, and read jointly. `known_as`: equal for calls that need one proof together."""
        plain_ways, one = list(ways_to_cut(leaves, self.batch_dim)), unbatched(module, given, leaves)
        ways = [*graph_ways(given, leaves, self._split.world), *plain_ways]
        if not ways:
            return one
        if (known := next(filter(knows_more, leaves), None)) is not None:
            return NotSplitError(
                f"{describe(module)} is not computed in slices: it gets a {type(known).__name__}, which knows more "
                "of its rows than their numbers.",
                advice="Give the model plain tensors: x.as_subclass(torch.Tensor)",
            )
        if module in self._ways and fits(self._ways[module], leaves):
            ways.insert(0, self._ways[module])
        if (why_not := hooked(module)) is not None:
            return why_not
        how = {"all_rows": all_rows, "compared": compared, "may_be_joint": compared}
        plan, why = self.first(plain, module, given, leaves, ways, known_as=known_as, **how)
        if plan is not None and not isinstance(plan.cuts, GraphCuts):
            self._ways[module] = plan.batch_leaf, plan.cuts
        if plan is None and one is None and min(batch_of(leaves, *way) for way in ways[:1]) < 2:
            one = Unbatched(f"{describe(module)} gets a batch of less than two rows.")
        if plan is None and len(ways) == len(plain_ways) and has_links(leaves):
            why = "it gets a graph, whose nodes depend on each other by their numbers in another argument"
        return plan or one or refusal(module, given, leaves, plain_ways or ways, why, self.batch_dim)

    def first(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        ways: list[Way],
        *,
        all_rows: bool = False,
        compared: bool = True,
        may_be_joint: bool = False,
        known_as: Hashable = None,
    ) -> tuple[SlicePlan | None, str]:
        """The plan for the first way of cutting the arguments that can be proven, or why the first one cannot. Every
        worker calls it. `may_be_joint`: see `reads`."""
        how = {"all_rows": all_rows, "compared": compared, "may_be_joint": may_be_joint}
        known = None if known_as is None else self._proven.get(known_as)  # a worker may have less than others
        with trial.in_series(uncompiled(module)):
            plan, why = known or self._first(plain, module, given, leaves, ways, how)
        plan = plan and anew(plan)
        found = zlib.crc32(repr(plan or why).encode())
        if len(set(self.group.gather_objects(found, "the proof"))) > 1:
            return None, "the workers do not find the same when they try it out"
        if known_as is not None and may_be_shared(plan):
            if len(self._proven) >= MANY:
                self._proven.clear()
            self._proven[known_as] = (plan and anew(plan)), why
        return plan, why

    def _first(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        ways: list[Way],
        how: dict[str, bool],
    ) -> tuple[SlicePlan | None, str]:
        mixes, raised, conflicts, tries, begun = "", "", Conflicts(), 0, Recorder.work
        first: tuple[str, str] | None = None
        causes, is_met_again = self._causes.setdefault(module, {}), False
        prove = functools.partial(self._try, plain, uncompiled(module), given, leaves)
        for number, way in enumerate(ways):
            work = Recorder.work - begun
            if tries == TRIES or (tries >= LIKELY and work > WORK) or (is_met_again and work > REPEATED):
                break
            if conflicts.rule_out(way[1]):
                continue
            tries += 1
            try:
                try:
                    plan = prove(way, **how)
                except Exception:
                    if not _rows_in_attributes(module, batch_of(leaves, *way)):
                        raise
                    plan = prove(way, **how, lend=True)
                # A module that mixes samples gives the same if only an argument that it ignores is cut: no proof.
                if not (number and plan.is_idle):
                    plan.compiled = any(map(is_compiled, module.modules()))
                    return plan, ""
            except CannotTry as error:
                mixes = mixes or str(error)
                is_met_again = is_met_again or causes.get(repr(way[1])) == str(error)
                if not number:
                    first = repr(way[1]), str(error)
            except PacelineError:
                raise
            except Exception as error:  # the module's own, on a part of the rows
                raised = raised or _told_error(error)
                if not (how["all_rows"] or isinstance(way[1], GraphCuts)) and number + 1 < len(ways):
                    with suppress(Exception):  # a TensorDict of which one item is cut cannot be made
                        some = _own(some_rows(given, leaves, way[1], FEW[0]))
                        conflicts.learn(plain, uncompiled(module), some, way[1], self._draws)
        if first is not None:
            causes[first[0]] = first[1]
        # A way that raised is most often none that a person would think of.
        return None, mixes or raised or "no argument that it uses can be cut"

    def _try(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        way: Way,
        *,
        all_rows: bool,
        compared: bool,
        may_be_joint: bool,
        lend: bool = False,
    ) -> SlicePlan:
        """`lend`: tensors in attributes that are as long as the batch are cut, too (a recurrent state)."""
        batch_leaf, cuts = way
        batch, split = batch_of(leaves, batch_leaf, cuts), split_of(leaves, batch_leaf, cuts, self._split)
        if batch < 2:
            raise CannotTry("a batch of less than two rows proves nothing")
        (whole, first), single = FEW, min(split.sizes) < 2
        if isinstance(cuts, GraphCuts):
            whole, first = (batch, batch // 2) if batch < whole else FEW
        if all_rows and batch > whole:
            whole, first = batch, split.sizes[0]
        some = some_rows(given, leaves, cuts, whole, first)
        lent = _rows_in_attributes(module, batch) if lend else {}
        reads = Reads(may_be_joint=may_be_joint)
        pieces = _Pieces(plain, module, some, way, (whole, first, batch), self._draws, lent, reads)
        while True:
            traces = [pieces.trace(part) for part in range(3)]
            judge = _Judge(pieces, traces, cuts, module)
            if not traces[0].ends_at_read:
                break
            reads.decide(judge.how_it_reads(), lambda: self._read_on_all_rows(plain, module, given))
        plan = judge.plan(batch_leaf)
        for place, dim in lent.items():
            if not any(place == p and role.kind == "rows" and role.dim == dim for p, role in plan.states):
                raise CannotTry(f"{_told(place)} is as long as the batch, and not replaced by the call")
        plan.names, plan.single, plan.batches = names_of(traces[0].forward), single, {batch}
        plan.packs = packed.MARK in plan.names
        plan.numbers, plan.told = numbers_of([traced.forward for traced in traces]), traces[0].told
        if single and not isinstance(cuts, GraphCuts):
            one = trial.run(plain, module, pieces.given(3), self._draws, prepare=pieces.lend(3), reads=reads)
            judge.compare_single(one)
        larger = self._larger(given, leaves, way, compared=compared or bool(lent))
        if larger and whole != batch:
            some = [(pieces.given(part), pieces.lend(part)) for part in (1, 0)]
            if why := self._why_uneven(plain, module, some, (first, whole), larger, cuts, reads):
                raise CannotTry(why)
        return plan

    def _larger(self, given: Any, leaves: list[Any], way: Way, *, compared: bool) -> list[tuple[int, Any]]:
        """The numbers of rows on which a module must do what it does on a few, with the arguments: all rows, and, where
        real calls are not compared with the proof, as many as each worker has."""
        batch = batch_of(leaves, *way)
        sizes = {batch} if batch > FEW[0] or not compared else set()
        if not compared and not isinstance(way[1], GraphCuts):
            sizes.update(split_of(leaves, *way, self._split).sizes)
        larger = sorted(size for size in sizes - set(FEW) if size > 1)
        return [(size, given if size == batch else some_rows(given, leaves, way[1], size)) for size in larger]

    def is_same_on_all_rows(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, plan: SlicePlan, *, compared: bool
    ) -> bool:
        """Whether the module does to all rows of this call what it does to a few: no other branch, no virtual batches.
        Unless real calls are `compared` with the proof: also to as many rows as each worker has. Every worker calls it;
        all get the same answer."""
        leaves, (many, few) = tree.leaves(given), FEW
        found, way = True, (plan.batch_leaf, plan.cuts)
        if larger := self._larger(given, leaves, way, compared=compared or bool(plan.states)):
            try:
                subject = uncompiled(module)
                reads = Reads()
                if plan.reads is not None:
                    reads = replace(plan.reads, answers=self._read_on_all_rows(plain, subject, given))
                some = [(some_rows(given, leaves, plan.cuts, rows), _as_it_is) for rows in (few, many)]
                with trial.in_series(subject):
                    found = not self._why_uneven(plain, subject, some, (few, many), larger, plan.cuts, reads)
            except PacelineError:
                raise
            except Exception:  # the module's own: the call itself, or a proof, will tell
                found = False
        return all(self.group.gather_objects(found, "the operations on all rows"))

    def _why_uneven(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        some: Sequence[tuple[Any, Callable[[nn.Module], None]]],
        rows: tuple[int, int],
        larger: Sequence[tuple[int, Any]],
        cuts: dict[int, int],
        reads: Reads,
    ) -> str:
        """What the module does otherwise to many rows than to a few; empty if there is nothing. `some`: the arguments
        with few rows, and with more, of which `rows` are the numbers, and what prepares the copy for them. `larger`:
        numbers of rows, and the arguments."""
        steps = functools.partial(self._steps, plain, module)
        few, more = (steps(*one, reads.again) for one in some)
        for size, given in larger:
            sizes = None if isinstance(cuts, GraphCuts) else (*rows, size)
            if why := growth.why_uneven(few, more, steps(given, _as_it_is, reads.again), sizes):
                return why
        return ""

    def _read_on_all_rows(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> list[Any]:
        """The numbers that Python reads in the call."""
        found: list[Any] = []

        def take() -> Take:
            found.clear()
            return lambda tensor: found.append(tensor.detach().item()) or NotImplemented  # type: ignore[func-returns-value]

        self._steps(plain, module, given, _as_it_is, take)
        return found

    def _steps(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        prepare: Callable[[nn.Module], None],
        take: Callable[[], Take],
    ) -> Steps:
        """What the module does with these arguments. `take`: makes what its reads get."""
        try:
            return self._steps_of(plain, module, _own(given), prepare, take(), _saves_nothing)
        except Exception:  # it may need what it saved: a gradient inside
            return self._steps_of(plain, module, _own(given), prepare, take(), nullcontext)

    @trial.in_own_context
    def _steps_of(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        prepare: Callable[[nn.Module], None],
        take: Take,
        saving: Callable[[], AbstractContextManager[Any]],
    ) -> Steps:
        with trial.alone(module) as (copied, _, told, reach), self._draws.rehearsal():
            prepare(copied)
            before = surroundings.look(copied, reach)
            tensors = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor)]
            samples = [*tensors, *parameters_in(copied), *copied.buffers(), *before.tensors.values()]
            with saving(), taken(take), packed.apart(tried=True), Steps(self._draws, samples) as steps:
                output = plain(copied, *given[0], **given[1])
            now = surroundings.look(copied, reach)
            steps.end(output, surroundings.changes(before.values, now.values), told())
        return steps


class _Pieces:
    """The arguments of the three trials."""

    def __init__(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        some: Any,
        way: Way,
        rows: tuple[int, int, int],
        draws: Draws,
        lent: dict[Place, int],
        reads: Reads,
    ) -> None:
        """`rows`: of A, of B and of the batch. `lent`: places in attributes, and the dimension that is cut."""
        self._plain, self._module, self._some, self._draws = plain, module, some, draws
        self._cuts, self._lent, self._rows, self.reads = way[1], lent, rows, reads
        whole, first, _ = rows
        sizes = (first, whole - first)
        leaves = tree.leaves(some)
        self._splits: list[Split | None] = [None]
        for rank in range(2):
            group: Any = Part(rank)
            if isinstance(self._cuts, GraphCuts):
                self._splits.append(self._cuts.split_in(leaves, group, sizes))
            else:
                self._splits.append(Split(group, sizes))
        told = self._splits[1]
        single: Any = Part(0)
        self._splits.append(Split(single, (1, whole - 1)))
        assert told is not None
        self.parts = Parts(tuple((sum(s.sizes), *s.sizes) for s in (told, *told.uneven)))  # type: ignore[misc]
        self._drawn: tuple[Drawn, ...] = ()
        self._whole: Traced | None = None  # the trial on all of the rows

    def given(self, part: int) -> Any:
        """Arguments of its own for a trial."""
        split, some = self._splits[part], self._some
        if split is not None:
            some = cut_leaves(some, tree.leaves(some), self._cuts, split)
        needs = {id(leaf): getattr(leaf, "requires_grad", False) for leaf in tree.leaves(some)}
        if split is not None:
            told = [getattr(leaf, "requires_grad", False) for leaf in tree.leaves(self._some)]
            needs = {id(leaf): told[i] for i, leaf in enumerate(tree.leaves(some))}
        return _own(some, needs)

    def lend(self, part: int) -> Callable[[nn.Module], None]:
        """Cuts what the attributes of a copy hold of the whole batch."""
        whole, first, batch = self._rows
        chosen = [k * batch // whole for k in range(whole)]
        chosen = [chosen, chosen[:first], chosen[first:], chosen[:1]][part]

        def prepare(copied: nn.Module) -> None:
            for place, dim in self._lent.items():
                value = side_effects.get(copied, place)
                index = torch.tensor(chosen, device=value.device)
                side_effects.put(copied, place, value.detach().index_select(dim, index))

        return prepare

    def trace(self, part: int) -> Traced:
        split = self._splits[part]
        made = trial.run(
            self._plain,
            self._module,
            self.given(part),
            self._draws,
            part=split,
            expected=self._drawn if part else (),
            prepare=self.lend(part),
            like=self._whole if part else None,
            reads=self.reads,
        )
        if split is None:
            self._drawn, self._whole = made.drawn, made
        return made


class _Judge:
    """Makes a plan of three traces. CannotTry says why there is none."""

    def __init__(self, pieces: _Pieces, traces: Sequence[Traced], cuts: dict[int, int], module: nn.Module) -> None:
        self._parts, self._traces, self._cuts, self._module = pieces.parts, traces, cuts, module
        in_numpy = traces[0].draws_in_numpy
        self._found = Induction(pieces.parts, draws_in_numpy=in_numpy)
        self._pieces = pieces

    def how_it_reads(self) -> str:
        """How the number is made that is read at the end of the traces, which were cut short there."""
        self._begin()
        self._found.follow([traced.forward for traced in self._traces])
        return self._found.read

    def _begin(self) -> None:
        a, found = self._traces[0], self._found
        found.kind.update(dict.fromkeys(a.weights, SAME))
        for columns in zip(*(traced.held for traced in self._traces), strict=True):
            kind = self._parts.along(*(shape for _, shape in columns))  # the same, or lent rows
            found.kind[columns[0][0]] = kind or MIXED
        for i, number in enumerate(a.given):
            if number is not None:
                found.kind[number] = self._kind_of_argument(i)

    def plan(self, batch_leaf: int) -> SlicePlan:
        a, found, reads = self._traces[0], self._found, self._pieces.reads
        self._begin()
        self._compare_python()
        found.follow([traced.forward for traced in self._traces])
        for i, number in enumerate(a.given_after):
            if number is not None and found.kind.get(number, SAME) != self._kind_of_argument(i):
                raise CannotTry(f"it changes an argument in place: {found.why(number) or 'not row by row'}")
        if reads.are_joint and a.given_after != a.given:
            raise CannotTry("it changes an argument in place, and its Python code reads a number of all samples")
        outputs = [self._role(leaf, i) for i, leaf in enumerate(tree.leaves(a.output))]
        states = [(place, self._role_of_state(place)) for place in sorted(a.states, key=repr)]
        buffers = list(self._buffers())
        for name, number in a.kept.items():
            if not found.kind.get(number, SAME).is_same:
                raise CannotTry(f"it keeps a tensor in {name} that depends on the rows")
        if a.starts:
            self._follow_backward()
        return SlicePlan(
            batch_leaf,
            self._cuts,
            tuple(outputs),
            tuple((place, role) for place, role in states if role is not None),
            tuple(buffers),
            places=side_effects.places_of_tensors(a.states),
            draws=tuple(self._rules()),
            reads_state=found.reads_state,
            reads=reads if reads.are_joint else None,
            averages=found.averages,
            all_count=found.adds_to_average,
        )

    def compare_single(self, one: Traced) -> None:
        """A worker may have a single row, which code may treat as another case (`squeeze`): the module must make the
        same operations on it, and all results must have the shapes of one row."""
        a = self._traces[0]
        if names_of(one.forward) != names_of(a.forward):
            raise CannotTry("it computes other operations on a single row")
        ops = [[op for op in traced.forward if is_counted(op) and op.name not in MAY_FUSE] for traced in (a, one)]
        for op, other in zip(*ops, strict=True):
            for out, found in zip(op.outs, other.outs, strict=False):
                if isinstance(out, Note) and isinstance(found, Note):
                    kind, shape = self._found.of(out), list(out.shape)
                    if kind.name in ("rows", "share", "index") and kind.dim is not None:
                        shape[kind.dim] //= self._parts.sizes[0][0]
                    if tuple(shape) != found.shape and kind not in (MIXED, PLACE):
                        raise CannotTry(f"a single row gives other shapes, by {op.name} ({op.line})")
        outputs = [[getattr(leaf, "ndim", None) for leaf in tree.leaves(traced.output)] for traced in (a, one)]
        if outputs[0] != outputs[1]:
            raise CannotTry("its output has another number of dimensions for a single row")

    def _kind_of_argument(self, leaf: int) -> Kind:
        if leaf not in self._cuts and not isinstance(self._cuts, GraphCuts):
            return SAME
        if leaf in self._cuts and not isinstance(self._cuts, GraphCuts):
            return rows(self._cuts[leaf])
        return self._by_values(leaf)

    def _by_values(self, leaf: int) -> Kind:
        """Of a batch of graphs: by the shapes of the argument in the three trials, and by its numbers."""
        values = [tree.leaves(self._pieces.given(part))[leaf] for part in range(3)]
        kind = self._parts.along(*(tuple(value.shape) for value in values))
        if kind is None:
            return MIXED
        if values[0].dtype is torch.int64:
            return self._parts.judge(values, torch.equal)
        return kind

    def _compare_python(self) -> None:
        """Python values that the call leaves, and what it prints, must not depend on the rows."""
        a, b, c = self._traces
        if where := surroundings.differing([traced.memory for traced in self._traces]):
            raise CannotTry(f"it leaves a number in {where} that depends on the rows")
        if not a.told == b.told == c.told:
            raise CannotTry("it prints or writes to a file what depends on the rows")
        if any(tree.structure(a.output) != tree.structure(other.output) for other in (b, c)):
            raise CannotTry("it returns another structure on other numbers of rows")
        if any(a.states.keys() != other.states.keys() for other in (b, c)):
            place = next(iter((a.states.keys() ^ b.states.keys()) | (a.states.keys() ^ c.states.keys())))
            raise CannotTry(f"it leaves values in {_told(place)} that depend on the number of rows")

    def _role(self, leaf: Any, i: int) -> Role:
        name = tree.paths(self._traces[0].output, "output")[i]
        if isinstance(leaf, torch.Tensor):
            number = self._traces[0].outputs[i]
            assert number is not None
            return self._role_of(number, leaf, name)
        others = [tree.leaves(traced.output)[i] for traced in self._traces[1:]]
        same = type(leaf) in PLAIN or isinstance(leaf, PLAIN)
        if same and all(type(other) is type(leaf) and (other == leaf or leaf != leaf) for other in others):
            return Role("same")
        if not same and (isinstance(leaf, OPAQUE) or _holds_nothing(leaf)):
            return Role("same")
        (whole, first, last), *_ = self._parts.sizes
        if type(leaf) is int and others == [leaf * first / whole, leaf * last / whole]:
            # It depends on the number of rows only: on samples it could depend by a read, which ends the proof.
            return Role("sum")
        if same:
            raise CannotTry(f"{name} is a number that depends on the number of rows")
        raise CannotTry(f"{name} is a {type(leaf).__name__}, whose tensors are not accessible from outside")

    def _role_of(self, number: int, tensor: torch.Tensor, name: str) -> Role:
        kind = self._found.kind.get(number, SAME)
        if kind.of >= len(self._parts.sizes) and kind.name in ("rows", "mean"):
            raise CannotTry(f"{name} has the rows that the call has chosen of a graph's")
        if kind.is_rows:
            many = tensor.shape[kind.dim or 0] // self._parts.sizes[kind.of][0]
            if kind.outer not in (1, many):
                raise CannotTry(f"{name} has a sample's rows in several groups")
            return Role("rows", kind.dim or 0, kind.outer > 1, kind.of, memory_order(tensor))
        if kind.is_same:
            return Role("same")
        if kind.name == "mean":
            return Role("mean", uneven=kind.of)
        if kind.name in ("sum", "average"):
            return Role(kind.name, average=kind.of)  # type: ignore[arg-type]
        if kind.name == "share" and kind.dim is None:
            return Role("sum")
        if kind == MIXED:
            raise CannotTry(f"{name} depends on other samples, or on their number, by {self._found.why(number)}")
        raise CannotTry(f"{name} depends on the number of rows")

    def _role_of_state(self, place: Place) -> Role | None:
        value, number = self._traces[0].states[place], self._traces[0].state_numbers.get(place)
        if number is None:
            return None  # a number, the same for all rows: see `_compare_python`
        role = self._role_of(number, value, _told(place))
        return None if role.kind == "same" else role

    def _buffers(self) -> Iterator[tuple[str, str, Role]]:
        norms = {id(b) for m in self._module.modules() for b in _statistics(m)}
        for (path, name), number in self._traces[0].buffers.items():
            held = self._module.get_submodule(path)._buffers.get(name)
            kind = self._found.kind.get(number, SAME)
            if id(held) in norms or kind.is_same or (path, name) in self._traces[0].states:
                continue
            where = f"its buffer {f'{path}.{name}'.lstrip('.')}"
            if held is None:
                raise CannotTry(f"it makes {where} in the call, of its rows")
            if kind.name not in ("sum", "mean") or kind.of:
                how = self._found.why(number)
                raise CannotTry(
                    f"{where} depends on all samples in a way that slices do not give{how and f', by {how}'}"
                )
            yield path, name, Role(kind.name)  # type: ignore[arg-type]

    def _follow_backward(self) -> None:
        a, found = self._traces[0], self._found
        for number, what in a.starts:
            source = a.outputs[what] if isinstance(what, int) else a.state_numbers[what]
            kind = found.kind.get(source, SAME) if source is not None else SAME
            # As in a real call: of a mean each worker gets its share, and so it counts of what is the same everywhere.
            of = kind.of if kind.name == "mean" else 0
            found.kind[number] = kind if kind.is_rows else SAME if kind.name == "sum" else SHARE._replace(of=of)
        if len({tuple(traced.grads) for traced in self._traces}) > 1:
            raise CannotTry("other parameters get gradients on other numbers of rows")
        found.follow([traced.backward for traced in self._traces])
        for name, number in a.grads.items():
            kind = found.kind.get(number, SAME)
            if name.isdigit():
                fine = (
                    kind == self._kind_of_argument(int(name))
                    if int(name) in self._cuts
                    else kind.name in ("sum", "share")
                )
                told = f"the gradient of argument {name}"
            else:
                fine, told = kind.name in ("sum", "share"), f"the gradient of {name}"
            if not fine and not (kind.is_same and name in a.zero_grads):
                how = found.why(number)
                raise CannotTry(f"{told} depends on other samples, or on their number{how and f', by {how}'}")

    def _rules(self) -> Iterator[DrawRule]:
        """Which dimension of each draw holds rows."""
        columns = [traced.drawn for traced in self._traces]
        if len({len(column) for column in columns}) > 1:
            raise CannotTry("it draws other random numbers on other numbers of rows")
        for drawn in zip(*columns, strict=True):
            kind = self._parts.along(*(one.shape for one in drawn))
            if kind is None:
                raise CannotTry("it draws other random numbers on other numbers of rows, in a way that cannot be split")
            yield DrawRule(len(drawn[0].shape), kind.dim, kind.of, drawn[0].order)


def _told_error(error: Exception) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    line = next(filter(None, (line_in(frame) for frame in reversed(frames))), "")
    told = str(error).strip().splitlines()
    at, what = f" ({line})" if line else "", f": {told[0]}" if told else ""
    return f"tried on some of the rows, it raised {type(error).__name__}{at}{what}"


def _saves_nothing() -> AbstractContextManager[Any]:
    """A graph that is never walked back needs no memory for the whole batch."""

    def asked(nothing: None) -> Any:
        raise CannotTry("it walks back inside its forward")

    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, asked)


def _as_it_is(copied: nn.Module) -> None:
    """Nothing of the copy is to be changed."""


def _rows_in_attributes(module: nn.Module, batch: int) -> dict[Place, int]:
    """Tensors in attributes with a dimension as long as the batch."""
    return {
        place: tuple(value.shape).index(batch)
        for place, value in side_effects.look(module).values()
        if isinstance(value, torch.Tensor) and batch in value.shape and is_in_module(place)
    }


def _statistics(module: nn.Module) -> Iterator[torch.Tensor]:
    """Of a batch norm, which sees the whole batch."""
    from paceline.torch_private import BatchNorm

    if isinstance(module, BatchNorm):
        yield from (buffer for buffer in module._buffers.values() if buffer is not None)


def _holds_nothing(value: Any) -> bool:
    """Whether an object surely has no tensor: none was found in its attributes, and it is no generator."""
    return hasattr(value, "__dict__") and not callable(value) and not isinstance(value, Iterator)


def _told(place: Place) -> str:
    path, name = place[:2]
    return f"its attribute {f'{path}.{name}'.lstrip('.')}" if is_in_module(place) else f"the variable {name}"


def _own(given: Any, needs_grad: dict[int, bool] | None = None) -> Any:
    """Copies, which the call may change; one for a tensor that is given twice."""
    made: dict[int, torch.Tensor] = {}

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            needs = leaf.requires_grad if needs_grad is None else needs_grad[id(leaf)]
            made[id(leaf)] = leaf.detach().clone().requires_grad_(needs)
        return made[id(leaf)]

    return tree.replace(given, put)
