"""A sliced call: each worker computes the rows of its slice, and every worker returns the output for the whole batch.

A `SlicePlan` says which arguments to cut and how to combine outputs. `proof` finds and checks it at the first call of
its kind.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.comm.group import Group
from paceline.errors import NotSplitError, PacelineError, PartedError
from paceline.script import memory, rng, tree
from paceline.script.draws import compiled
from paceline.script.draws.rows import AstrayError, Draws
from paceline.script.proof import packed, side_effects
from paceline.script.proof.arguments import (
    brought_split,
    cut_leaves,
    rows_in,
    sharing,
    unsharded,
    versions_of,
)
from paceline.script.proof.graphs import GraphCuts
from paceline.script.proof.guards import Guards
from paceline.script.proof.likeness import likeness
from paceline.script.proof.mutations import Containers, Told
from paceline.script.proof.plan import Judgement, Role, SlicePlan, Unbatched
from paceline.script.proof.prints import Prints
from paceline.script.proof.proof import Proof
from paceline.script.proof.reads import JointReads, OtherBranch, taken
from paceline.script.proof.reasons import cause_of, line_of_script, name_of
from paceline.script.proof.recorder import Names
from paceline.script.proof.side_effects import Place
from paceline.script.proof.surroundings import State
from paceline.script.proof.ways import split_of
from paceline.script.redo import Redo, Unmade
from paceline.script.rows import crossings, origins
from paceline.script.rows.catalogue import Rows, gradients
from paceline.script.rows.crossings import Split
from paceline.script.rows.inputs import count_computed
from paceline.script.rows.layout import Layout
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.rows.tensor import make_plain_if_free
from paceline.script.slicing import packed_arguments
from paceline.script.slicing.functions import Functions
from paceline.script.slicing.lazy_parameters import has_lazy
from paceline.script.slicing.loss_denominators import Averages
from paceline.script.slicing.unfinished import (
    Attribute,
    Unfinished,
    equal_buffers,
    follow,
    numbers_in,
    set_numbers,
    sizes_of,
)
from paceline.script.together import Together
from paceline.torch_private import graph_nodes_made, is_compiled, is_running_compiled, parameters_in, uncompiled

MANY = 16  # plans per module: with more, calls that differ only in an argument's value share a plan
MOST = 64  # … and then the oldest ones are forgotten
FAILURES = 3  # proofs of one kind of call that did not hold: no more is made


class NotAsProven(Exception):
    """A call made other operations, or drew other random numbers, than in its proof."""


@dataclass(slots=True)
class _Begun:
    """The current call, and the plan that calls of its kind had before."""

    module: nn.Module
    plans: dict[Hashable, Judgement]
    kind: Hashable
    before: Judgement
    calls: int  # made with the plan before
    plan: SlicePlan | None = None
    put_back: Callable[[], None] | None = None  # the state before the call, if it is compared with its proof
    again: bool = False  # the next call of its kind is to be proven anew
    has_new_sizes: bool = False  # other than in the calls before
    split: Split | None = None
    unfinished: Unfinished | None = None
    streams: tuple[Any, ...] | None = None  # before the call, if it reads jointly, and reads first
    reads: JointReads | None = None

    def forget(self) -> None:
        """The proof met the exception that the call then raised, and proved nothing: the next call must make it."""
        if self.before is None:
            self.plans.pop(self.kind, None)
        else:
            self.plans[self.kind] = self.before


class SlicedCalls:
    """All sliced calls of a worker."""

    def __init__(
        self,
        group: Group,
        together: Together,
        prove: Proof,
        inside: Callable[[SlicePlan, Split, bool], Any],
        averages: Averages,
        draws: Draws,
        norms_see_batch: Callable[[], bool],
        gather_below: int,
        as_script: Callable[[], AbstractContextManager[None]],
        name_in_script: Callable[[nn.Module], str],
        advice_for: Callable[[NotSplitError], str],
    ) -> None:
        """`gather_below`: bytes below which an output is gathered at once, which is faster than staying sharded.
        `as_script`: inside it, a module's call is an outermost one. `name_in_script`: of a module, for a person.
        `advice_for`: what the user may type about a refusal."""
        self.group, self._together, self._norms_see_batch = group, together, norms_see_batch
        self._gather_below, self._as_script, self._name_in_script = gather_below, as_script, name_in_script
        self._advice_for = advice_for
        self.gathers = False  # whatever its size: in a Function, whose C++ part does not know sharded outputs
        self.split: Split | None = None  # of the current call
        self.averages, self._draws = averages, draws
        group.functions = Functions(group, prove, averages)
        self._prove, self._inside = prove, inside
        self.guards = Guards()
        self._plans: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, Judgement]] = weakref.WeakKeyDictionary()
        # Those of a kind of call that reads numbers of all rows: one for each branch.
        self._branches: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, list[SlicePlan]]] = (
            weakref.WeakKeyDictionary()
        )
        self._failures: dict[Hashable, int] = {}  # of proofs that did not hold
        self._begun: _Begun | None = None  # the current call
        self.refusal: NotSplitError | None = None  # why the first module that runs whole does
        self.unbatched: Unbatched | None = None  # the first call without a batch
        self._placed: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # of which the compiled code's draws were placed
        self._told: set[str] = set()  # classes that are not computed in slices, and why
        self.redo: Redo | None = None  # in an elastic run

    def call(
        self, plain: Callable[..., Any], own: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Calls the module in slices. If the call raises on one worker, it raises on all workers. `own`: the module's
        own call, which `plain` makes inside mods and strategies."""
        if plain is own and (sequence := packed_arguments.packed_in((args, kwargs))) is not None:
            call, (args, kwargs) = packed_arguments.inside(plain, sequence), packed_arguments.padded((args, kwargs))
            return packed_arguments.packed_as(self.call(call, call, module, args, kwargs), sequence)

        def compute(module: nn.Module, args: Any, kwargs: Any, put_back: Callable[[], None] | None = None) -> Any:
            again = None if put_back is None else functools.partial(self._forget_call, put_back)
            while True:
                try:
                    work = (self._call, plain, own, module, args, kwargs)
                    return self._together.do(*work, tell=self._tell, undo=self._undo, again=again)
                except (OtherBranch, NotAsProven, AstrayError) as error:
                    if not self._takes_other_branch():
                        return self._unproven(plain, str(error))
                finally:
                    self._begun = None

        made = compute(module, args, kwargs) if self.redo is None else self.redo.call(compute, module, args, kwargs)
        return made.make(args, kwargs) if isinstance(made, Unmade) else made

    def _forget_call(self, put_back: Callable[[], None]) -> None:
        """The call was broken off, and is made again: nothing of it counts."""
        put_back()
        if self._begun is not None:
            self._begun.forget()
            if isinstance(self._begun.before, SlicePlan):
                self._begun.before.calls = self._begun.calls

    def _call(
        self, plain: Callable[..., Any], own: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        given = (args, kwargs)
        leaves = tree.leaves(given)
        if any(type(leaf) is torch.Tensor and leaf.is_nested for leaf in leaves):  # a sharded output is none
            return Unmade(functools.partial(self._call_whole, plain, module, None, None))
        plans = self._plans.setdefault(module, {})
        few = len(plans) < MANY
        single = _rows(leaves, self._prove.batch_dim) < 2 * self.group.world
        kind = (single, self.guards.key(module, given, leaves, values=few))
        if kind not in plans and has_lazy(module):
            return Unmade(functools.partial(self._call_whole, plain, module, None, None))
        known = plans.get(kind)
        before = known if isinstance(known, SlicePlan) else None
        is_seen = not is_compiled(module) and not is_running_compiled()
        compared = plain is own and is_seen  # mods and strategies make operations of their own
        self._begun = begun = _Begun(module, plans, kind, known, 0 if before is None else before.calls)
        if kind not in plans or (before is not None and not self._holds(before, own, module, given, leaves, compared)):
            if len(plans) >= MOST:
                plans.clear()
                self._branches.pop(module, None)
            known = plans[kind] = self._judge(own, module, given, kind, compared=compared)
            if isinstance(known, SlicePlan) and known.reads is not None:
                self._branches.setdefault(module, {}).setdefault(kind, []).append(known)
        if not isinstance(known, SlicePlan):
            return self._unsliced(plain, begun)
        plan, due = known, _is_due(known.calls + 1)
        plan.compiled = plan.compiled or not is_seen
        if due and plan.calls > 1 and self.group.watch.traced:
            due = False  # in a trace each operation would be there twice: the first call after the trace is due
        else:
            plan.calls += 1
        count_computed(leaves)
        split = brought_split(leaves, plan.cuts) or split_of(leaves, plan.batch_leaf, plan.cuts, self.group)
        cut_args, cut_kwargs = cut_leaves(given, leaves, plan.cuts, split)
        subject = uncompiled(module)
        attributes = [Attribute.of(subject, place) for place, _ in plan.states]
        begun.unfinished = left = Unfinished(subject, attributes, [(b, b.clone()) for b in _buffers(subject, plan)])
        begun.plan, begun.split = plan, split
        self.split = split
        local, containers = tree.leaves((cut_args, cut_kwargs)), Containers((cut_args, cut_kwargs))
        rows = rows_in(leaves, plan.cuts, split)
        versions = versions_of(local, rows)
        self.averages.begin()
        if plan.compiled and plan.averages:
            self.averages.prepare(leaves[plan.batch_leaf].device)
        names, places = None, dict[Place, Any]()
        plan.sizes.add(plan.other_sizes(leaves))
        is_due = due or begun.has_new_sizes or not few or plan.reads_state or self.guards.is_restless(module)
        is_due = is_due or plan.is_doubtful or plan.has_told
        if compared and not plan.compiled and is_due:
            with self.group.watch.checking():
                names, begun.put_back = Names(self._draws), _state(subject, local, versions)
        elif (
            plan.all_count  # a target may be ignored in any call
            or (plan.compiled and (plan.draws or plan.averages) and is_due)
            or (plan.reads is not None and not plan.reads.come_first)
        ):
            begun.put_back = _state(subject, local, versions)
        for attribute, (_, role) in zip(attributes, plan.states, strict=True):
            attribute.lend(subject, role, split)
        if names is not None:
            with self.group.watch.checking():
                places = side_effects.look(subject)
        if plan.reads is not None:
            begun.streams, begun.reads = rng.snapshot(), JointReads(plan.reads, split)
        made, prints = graph_nodes_made(), Prints(hold=begun.put_back is not None)
        try:
            with (
                self._inside(plan, split, plain is own),
                sharing(module, plan.states, self.group),
                names or nullcontext(),
                nullcontext() if plan.compiled else prints.watched(),
                nullcontext() if begun.reads is None else taken(begun.reads.take),
                packed.apart(tried=False) if plan.packs else nullcontext(),
            ):
                output = containers.told(plain(module, *cut_args, **cut_kwargs))
                is_complete, is_own = self._draws.is_complete or plain is not own, not self._draws.on
        except (AstrayError, OtherBranch):
            raise
        except Exception as error:
            prints.release()
            if any(map(str.isdigit, str(error))):
                error.add_note(f"(on worker {self.group.rank}, which had {split.mine} of {split.batch} rows)")
            raise
        finally:
            self.split = None
            self.averages.end()
        made = graph_nodes_made() - made
        if names is not None and not is_own:
            if names.found != plan.names:
                if plan.is_doubtful:
                    self._tell_doubt(module)
                raise NotAsProven(_other_operation(plan.names, names.found))
            joint = plan.reads is not None
            if plan.calls == 1 and not _are_numbers(plan.numbers, names.numbers, joint):  # nothing has changed since
                raise NotAsProven("it computes with a number that depends on the number of rows")
        if names is not None and side_effects.places_of_tensors(side_effects.changed(subject, places)) != plan.places:
            raise NotAsProven("it leaves tensors in other attributes than when it was tried out")
        # The number of nodes costs nothing, and tells of a branch that nothing in the key shows.
        plan.is_doubtful = names is None and plan.nodes not in (None, made)
        plan.nodes = made if names is not None else plan.nodes
        if not is_complete:
            raise NotAsProven("it draws fewer random numbers than when it was tried out")
        if plan.compiled and not is_own:
            self._look_at_compiled_draws(plan, module)
        plan.traced_averages = max(plan.traced_averages, self.averages.traced)
        if plain is own and self.averages.count + plan.traced_averages != plan.averages:
            raise NotAsProven("it takes other means over targets than when it was tried out")
        if plan.all_count and not self.averages.all_count(plan.traced_averages):
            raise NotAsProven("it adds another term to a mean over targets of which some are ignored or weighted")
        if prints.text not in ("", plan.told):
            plan.has_told = True
            if begun.put_back is not None:
                raise NotAsProven("it prints what depends on the rows")
            self._tell_slice(module)
        prints.release()
        for attribute in attributes:
            attribute.take_back(subject)
        met = self.group.pulse.collectives
        for i in versions:
            if local[i]._version != versions[i] and not isinstance(leaves[i], Rows):
                self._join_argument(module, leaves[i], local[i], *rows[i])
        for number in range(len(plan.states) + len(plan.buffers)):
            self._join_left(left, number, plan, split)
        whole = self._join(output, plan, split, local)
        self._together.meet_since(met)
        return Containers(given).adopt(whole) if isinstance(whole, Told) else whole

    def _judge(
        self, own: Callable[..., Any], module: nn.Module, given: Any, kind: Hashable, *, compared: bool
    ) -> Judgement:
        """What the proof finds of a call of this kind, or has found of a module like this one: the plan's first call is
        compared with its proof. Every worker calls it."""
        has_failed = self._failures.get((id(module), kind), 0) > 0
        alike = likeness(module) if compared and not has_failed else None
        with self._checking(module, "can be computed in slices"):
            whole = unsharded(given)
            leaves = tree.leaves(whole)
            shapes = (tuple(x.shape) if isinstance(x, (torch.Tensor, np.ndarray)) else None for x in leaves)
            known_as = None if alike is None else (alike, kind, *shapes)
            found = self._prove(own, module, whole, leaves, all_rows=has_failed, compared=compared, known_as=known_as)
            memory.return_freed()
            return found

    def _look_at_compiled_draws(self, plan: SlicePlan, module: nn.Module) -> None:
        """All draws of compiled code must have been placed. A CUDA graph that is replayed does not tell."""
        missed, self._draws.missed, met, self._draws.met = self._draws.missed, "", self._draws.met, 0
        if missed:
            raise NotAsProven(missed)
        if met or not any(rule.dim is not None for rule in plan.draws):
            self._placed.add(module)
        elif module not in self._placed:
            raise NotAsProven("its compiled code draws random numbers in a way that Paceline does not know")

    def _unsliced(self, plain: Callable[..., Any], begun: _Begun) -> Unmade:
        """The call, which has no plan: in parts if it has any."""
        module, why = begun.module, begun.plans[begun.kind]
        if not isinstance(why, Unbatched) and _has_parts(module):
            return Unmade(functools.partial(self._call_parts, plain, begun))
        return Unmade(functools.partial(self._call_whole, plain, module, begun, why))

    def _call_whole(
        self, plain: Callable[..., Any], module: nn.Module, begun: _Begun | None, why: Any, args: Any, kwargs: Any
    ) -> Any:
        """Every worker computes the whole call, with the script's own random numbers."""
        had = _parts(module)
        self._begun = begun
        try:
            work = (self._whole, plain, module, args, kwargs)
            output = self._together.do(*work, tell=self._tell, undo=self._undo, once=True)
        finally:
            self._begun = None
        if begun is not None and begun.again:
            begun.plans.pop(begun.kind, None)
        if self._has_made_parts(module, had):
            return output
        if isinstance(why, Unbatched):
            self.unbatched = self.unbatched or why
        elif why is not None:  # said only now: a call that was refused because it raises is not refused
            self._tell_why(module, why, "every worker computes it whole")
        return output

    def _whole(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        make_plain((args, kwargs))
        compiled.tell_devices(0, 0)
        output = plain(module, *args, **kwargs)
        self.group.end_work()
        return output

    def _call_parts(self, plain: Callable[..., Any], begun: _Begun, args: Any, kwargs: Any) -> Any:
        """Computes the modules that this one calls in slices, as if its forward were lines of the script, which every
        worker runs whole: a model with its loss inside, a loss between samples, a layer that mixes them."""
        module, why, had = begun.module, begun.plans[begun.kind], _parts(begun.module)
        try:
            output = self._together.do(self._in_parts, plain, module, args, kwargs, once=True)
        except Exception:
            begun.forget()
            raise
        if self._has_made_parts(module, had):
            return output
        if isinstance(why, NotSplitError):  # None: it gets no tensor, and makes those of its modules
            self._tell_why(module, why, "the modules in it are computed in slices, and the rest whole by every worker")
        if begun.again:
            begun.plans.pop(begun.kind, None)
        return output

    def _in_parts(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        make_plain_if_free((args, kwargs))
        with self._as_script():
            output = plain(module, *args, **kwargs)
        self.group.end_work()
        return output

    def _has_made_parts(self, module: nn.Module, had: list[int]) -> bool:
        """Whether the call has made modules (a head, as wide as its input): what was known of the module is void."""
        if _parts(module) == had:
            return False
        self._plans.pop(module, None)
        self._branches.pop(module, None)
        self.guards.forget(module)
        return True

    @contextmanager
    def _checking(self, module: nn.Module, what: str) -> Iterator[None]:
        with self.group.watch.checking(), self.group.pulse.checking(f"whether the {self._named(module)} {what}"):
            yield

    def _named(self, module: nn.Module) -> str:
        """The module, its name in the script and the line that calls it, for a person."""
        known = ", called at ".join(filter(None, (self._name_in_script(module), line_of_script())))
        return f"module {name_of(module)} ({known})" if known else f"module {name_of(module)}"

    def _tell_slice(self, module: nn.Module) -> None:
        self.group.pulse.notice(
            f"What the {self._named(module)} has printed inside this call is of worker 0's slice, not of the whole "
            "batch. In later calls that print it is of the whole batch."
        )

    def _tell_doubt(self, module: nn.Module) -> None:
        name = type(uncompiled(module)).__name__
        self.group.pulse.notice(
            f"The module {name} computes otherwise than when it was tried out, by a value that Paceline does not see. "
            f"So did the call before, whose numbers may not be those of plain Python. To avoid this: --whole {name}"
        )

    def _tell_why(self, module: nn.Module, why: NotSplitError, instead: str) -> None:
        self.refusal = self.refusal or why
        told = why.message.splitlines()[0]
        about = {name_of(module), cause_of(told)}  # once for a class, and for a cause
        if not about & self._told:
            named = told.replace(f"module {name_of(module)}", self._named(module), 1)
            advice = f" {self._advice_for(why)}".rstrip()
            self.group.pulse.notice(f"{named} Therefore {instead}.{advice}")
        self._told |= about

    def _join_argument(
        self, module: nn.Module, whole: torch.Tensor, local: torch.Tensor, dim: int, split: Split
    ) -> None:
        """The call has changed its argument in place, each worker its own rows: all workers get all rows."""
        rows = local.narrow(dim, 0, split.mine)
        # `data`, because own rows, which backward may need, do not change here.
        whole.data.copy_(self.group.gather_rows(rows, dim, split.sizes, "an argument that the model changed"))
        if self.redo is not None:
            self.redo.note_change(module, whole)

    def _join_left(self, left: Unfinished, number: int, plan: SlicePlan, split: Split) -> None:
        """Combines the workers' pieces of a value left in an attribute, or of a change to a buffer."""
        if number < len(plan.states):
            place, role = plan.states[number]
            value = side_effects.get(left.module, place)
            if role.kind != "same" and isinstance(value, (torch.Tensor, int, float)):
                side_effects.put(left.module, place, self._join_leaf(value, role, split, plan))
        else:
            *_, role = plan.buffers[number - len(plan.states)]
            buffer, _ = left.buffers[number - len(plan.states)]
            buffer.copy_(self._join_leaf(buffer.detach(), role, split, plan))
        left.joined = number + 1

    def _tell(self) -> list[Any]:
        begun = self._begun
        if begun is None:
            return [[], []]
        known = {place for place, _ in begun.plan.states} if begun.plan is not None else ()
        subject = uncompiled(begun.module)
        return [sizes_of(self._equal_buffers()), list(numbers_in(subject, but=known))]

    def _undo(self, first: int, told: list[Any]) -> None:
        """After the call raised on every worker: leaves the state that worker `first` would have left alone."""
        begun = self._begun
        if begun is None:  # the call raised before it changed anything
            return
        left, plan, split = begun.unfinished, begun.plan, begun.split
        if left is not None and plan is not None and split is not None:
            for number, has_changed in enumerate(left.changed_by_all(self.group)):
                if not has_changed:
                    left.put_back(number)
                elif number >= left.joined:
                    self._join_left(left, number, plan, split)
        if not told:  # a worker failed outside, in a module whose parts are computed in slices
            return
        sizes, numbers = told
        set_numbers(uncompiled(begun.module), numbers)
        follow(self._equal_buffers(), first, sizes, self.group)
        if begun.plans.get(begun.kind) is not begun.before and plan is None:
            begun.forget()
        if isinstance(begun.before, SlicePlan):
            begun.before.calls = begun.calls

    def _equal_buffers(self) -> list[torch.Tensor]:
        if self._begun is None:
            return []
        left = self._begun.unfinished
        but = [] if left is None else [buffer for buffer, _ in left.buffers]
        if left is not None:
            but += [side_effects.get(left.module, attribute.place) for attribute in left.attributes]
        return equal_buffers(self._begun.module, norms=self._norms_see_batch(), but=but)

    def _holds(
        self,
        plan: SlicePlan,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        compared: bool,
    ) -> bool:
        """Whether the plan is valid for the sizes of this call. On the 1st, 2nd, 4th … new number of rows, on one that
        is larger than all before, and on the 1st, 2nd, 4th … new sizes of other dimensions, the module must do to all
        rows what it does to a few."""
        if not plan.fits(leaves):
            return False
        batch = plan.batch(leaves)
        if batch < 2 or (min(split_of(leaves, plan.batch_leaf, plan.cuts, self.group).sizes) < 2 and not plan.single):
            return False
        begun, sizes, is_due = self._begun, plan.other_sizes(leaves), False
        assert begun is not None
        if batch not in plan.batches:
            is_due = batch > max(plan.batches)  # a limit that the code has would show: `y[:8]`
            plan.batches.add(batch)
            is_due = is_due or _is_due(len(plan.batches))
        begun.has_new_sizes = sizes not in plan.sizes
        if begun.has_new_sizes and not isinstance(plan.cuts, GraphCuts):  # a mask that all rows have in common
            is_due = is_due or _is_due(len(plan.sizes) + 1)
        if not is_due:
            return True
        with self._checking(module, f"computes the same of {batch} rows as of few"):
            return self._prove.is_same_on_all_rows(plain, module, unsharded(given), plan, compared=compared)

    def _takes_other_branch(self) -> bool:
        """Whether the call has read other numbers, of the whole batch, than when it was tried out. Then it is undone,
        to be made with the plan for these numbers, or to be proven anew."""
        begun = self._begun
        assert begun is not None
        plan, reads = begun.plan, begun.reads
        if plan is None or reads is None or plan is not begun.before or reads.are_proven:
            return False
        if begun.put_back is not None:
            begun.put_back()
        elif begun.streams is not None:
            rng.restore(begun.streams)
        branches = self._branches.setdefault(begun.module, {}).setdefault(begun.kind, [])
        found = next((p for p in branches if p.reads is not None and p.reads.begin_with(reads.values)), None)
        if found is not None:
            begun.plans[begun.kind] = found
        elif len(branches) < MANY:
            del begun.plans[begun.kind]
        else:
            begun.plans[begun.kind] = NotSplitError(
                f"The module {name_of(begun.module)} is not computed in slices: its Python code reads a value that "
                f"depends on samples, and computes otherwise for each of {MANY} values."
            )
        return True

    def _unproven(self, plain: Callable[..., Any], why: str) -> Unmade:
        """A call did not go as proven: what it did is undone, and it is made anew, not in slices. The next call of its
        kind is proven anew, on all rows."""
        begun = self._begun
        assert begun is not None
        name = type(uncompiled(begun.module)).__name__
        if begun.put_back is None:
            raise NotSplitError(
                f"The module {name} was tried out, and later one of its calls drew other random numbers.",
                advice=f"To run this module whole on every worker: --whole {name}",
            )
        begun.put_back()
        at = (id(begun.module), begun.kind)
        if begun.has_new_sizes:  # a loop over time, or a branch on a length: there is a proof for each
            self.guards.by_sizes.add(begun.module)
        else:
            self._failures[at] = self._failures.get(at, 0) + 1
        self._branches.get(begun.module, {}).pop(begun.kind, None)
        refused = NotSplitError(f"The module {name} is not computed in slices: {why}.")
        begun.plans[begun.kind] = refused
        begun.again = self._failures.get(at, 0) < FAILURES
        begun.before = None if begun.again else refused
        unsliced = self._unsliced(plain, begun)

        def make(args: Any, kwargs: Any) -> Any:
            with self.group.watch.checking():
                return unsliced.make(args, kwargs)

        return Unmade(make)

    def _join(self, output: Any, plan: SlicePlan, split: Split, given: list[Any]) -> Any:
        pieces = tree.leaves(output)
        roles = plan.outputs
        if len(roles) != len(pieces):
            raise NotSplitError(
                f"A model returned {len(roles)} values when it was tried out, and now returns {len(pieces)}: how the "
                "workers' values are combined is not known.",
                advice="Run it whole on every worker: --whole NAME",
            )
        inputs = {_memory(leaf) for leaf in given if isinstance(leaf, torch.Tensor)}
        joined = [
            Rows(piece, _layout(piece, role, split))
            if role.kind == "rows" and self._stays_sharded(piece, split.rows_of(role.uneven), inputs)
            else self._join_leaf(piece, role, split, plan)
            for piece, role in zip(pieces, roles, strict=True)
        ]
        return tree.rebuild(output, iter(joined))

    def _stays_sharded(self, piece: torch.Tensor, split: Split, inputs: set[int]) -> bool:
        """The same on all workers. Not if a worker has no row to compute with, if the model keeps the gradient of its
        output, or if the output shares memory with an argument, which the script would see change."""
        size = piece.numel() * piece.element_size() // max(split.mine, 1) * split.batch
        return (
            size >= self._gather_below
            and not self.gathers
            and self.redo is None  # rows that a lost worker holds would be lost
            and all(split.sizes)
            and piece.layout is torch.strided
            and not (piece.grad_fn is not None and piece.retains_grad)
            and _memory(piece) not in inputs
        )

    def _join_leaf(self, piece: Any, role: Role, split: Split, plan: SlicePlan) -> Any:
        if role.kind == "same":
            return piece
        met = self.group.pulse.collectives
        try:
            return self._put_together(piece, role, split, plan)
        except PacelineError:
            raise
        except Exception as error:
            if self.group.pulse.collectives == met:  # the other workers wait in the collective, and learn of it there
                raise
            told = PartedError(
                f"Worker {self.group.rank} failed while combining the workers' outputs, and the other workers did not: "
                f"{type(error).__name__}: {error}",
                advice="If memory ran out: use a smaller batch, or let each worker see its slice: --mod view=slice",
            )
            raise self.group.ending.carry(told) from error

    def _put_together(self, piece: Any, role: Role, split: Split, plan: SlicePlan) -> Any:
        if role.kind == "rows":
            layout = _layout(piece, role, split)
            whole = layout.gather(piece)
            origins.remember(whole, piece, layout)
            if piece.grad_fn is not None and piece.retains_grad:
                gradients.retain_whole(piece, whole, layout)
            return whole
        divisor = None
        if role.kind == "average":
            divisor = self.averages.divisor(piece, role.average)
            if divisor is None and role.average < plan.traced_averages:
                divisor = self.averages.traced_divisor(piece, role.average)
        if divisor is not None:
            return crossings.mean(piece, divisor if split.mine else torch.zeros_like(divisor), self.group)
        weight = float(split.mine > 0) if role.kind == "sum" else split.rows_of(role.uneven).share
        if isinstance(piece, torch.Tensor):
            return crossings.blend(piece, weight, self.group)
        value = crossings.blend(torch.tensor(piece, dtype=torch.float64, device="cpu"), weight, self.group).item()
        return type(piece)(round(value) if isinstance(piece, int) else value)


def _is_due(call: int) -> bool:
    """Whether this is the 1st, 2nd, 4th, 8th … call: it is compared with its proof."""
    return call & (call - 1) == 0


def _other_operation(proven: list[str], found: list[str]) -> str:
    pairs = itertools.zip_longest(proven, found, fillvalue="nothing")
    expected, other = next((one, other) for one, other in pairs if one != other)
    return f"it computes {other} where it computed {expected} when it was tried out"


def _are_numbers(proven: list[Any], found: list[Any], joint: bool) -> bool:
    """Whether these are the proven ones, where those are the same on any number of rows. `joint`: a float may be a sum
    over workers, whose last digits differ."""
    pairs = zip(proven, found, strict=False)
    fine = (a is NotImplemented or a == b or a != a or (joint and type(a) is type(b) is float) for a, b in pairs)
    return len(proven) == len(found) and all(fine)


def _rows(leaves: list[Any], batch_dim: int) -> int:
    """The number of rows, if the batch is where most scripts have it."""
    first = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
    return 0 if first is None else int(first.shape[batch_dim if first.dim() > batch_dim else 0])


def _state(module: nn.Module, local: list[Any], versions: dict[int, int]) -> Callable[[], None]:
    """Returns a function that undoes what a call did."""
    state = State(module)

    def put_back() -> None:
        if any(local[i]._version != version for i, version in versions.items()):
            raise NotSplitError(
                "A model changed its arguments in place, and did not compute what it computed when it was tried out.",
                advice="Run it whole on every worker: --whole NAME",
            )
        state.put_back()

    return put_back


def _buffers(module: nn.Module, plan: SlicePlan) -> Iterator[torch.Tensor]:
    """The buffers that a call changes depending on its rows."""
    for path, name, _ in plan.buffers:
        yield module.get_submodule(path).get_buffer(name)


def _layout(piece: torch.Tensor, role: Role, split: Split) -> Layout:
    split = split.rows_of(role.uneven)
    many = piece.shape[role.dim] // max(split.mine, 1) or 1  # a worker's graphs may have no edges
    return Layout(split, role.dim, *((many, 1) if role.spread else (1, many)), role.order)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _parts(module: nn.Module) -> list[int]:
    """Of which modules it consists."""
    return list(map(id, module.modules()))


def _has_parts(module: nn.Module) -> bool:
    """Whether a module calls modules that could be computed in slices. Not seen inside compiled code."""
    if is_compiled(module) or isinstance(module, torch.jit.ScriptModule):
        return False
    return any(next(parameters_in(child), None) is not None for child in module.children())
