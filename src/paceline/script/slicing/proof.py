"""Proves that a module may be computed in slices, and finds out how its outputs are combined.

At the first call of its kind the module runs twice without gradients: on the whole batch, and on the worker's slice.
If the results agree, also with other random numbers, the comparison says what each output is (rows of the batch, a
mean, a sum, the same everywhere) and which dimension of each random draw holds rows. If they agree for no way of
cutting the arguments, the module mixes samples or the batch dimension is another one, and the run stops before a wrong
number is printed.

The proof changes nothing in the script's state: random streams, buffers, attributes and training flags are restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from paceline.comm.called_off import CalledOff
from paceline.comm.group import Group
from paceline.errors import NotSplitError
from paceline.script import tree
from paceline.script.draws.rows import Drawn, Draws
from paceline.script.slicing.arguments import cut_leaves
from paceline.script.slicing.backward_hooks import hooked
from paceline.script.slicing.comparing import (
    CLEAR,
    IN_DOUBLE,
    blend_role,
    close,
    is_float32,
    on_host,
    row_dim,
    rows_of,
)
from paceline.script.slicing.crossings import Split, memory_order
from paceline.script.slicing.dry_run import FAILED, SeenCall, asleep, in_double, rehearse, woken
from paceline.script.slicing.graphs import graph_ways
from paceline.script.slicing.loss_denominators import Averages
from paceline.script.slicing.plan import Judgement, Role, SlicePlan
from paceline.script.slicing.reasons import describe, name_of, other_gradients, reason, refusal, unbatched
from paceline.script.slicing.side_effects import Place, is_in_module
from paceline.script.slicing.slopes import Gradients
from paceline.script.slicing.ways import FEW, Way, batch_of, some_rows, split_of, ways_to_cut
from paceline.torch_private import BatchNorm, is_compiled, uncompiled


class Proof:
    """Finds plans. Every worker calls it at the same call, and all workers get the same plan or the same error."""

    def __init__(
        self,
        group: Group,
        batch_dim: int,
        split_for_norms: Callable[[Split], AbstractContextManager[None]],
        averages: Averages,
        draws: Draws,
        norms_see_batch: Callable[[], bool],
    ) -> None:
        """`split_for_norms` tells batch norms, temporarily, that they see a slice."""
        self.group, self.batch_dim, self._split_for_norms = group, batch_dim, split_for_norms
        self._all_eval, self._graph, self._shift = False, False, False  # mode of the dry runs
        self._averages, self._draws, self._norms_see_batch = averages, draws, norms_see_batch
        self._gradients = Gradients(group, self._with_slopes)

    def __call__(self, plain: Callable[..., Any], module: nn.Module, given: Any, leaves: list[Any]) -> Judgement:
        """The plan for calls like this one, or why they cannot be sliced; None if no argument has a batch."""
        plain_ways, one = list(ways_to_cut(leaves, self.batch_dim)), unbatched(module, given, leaves)
        ways = [*graph_ways(leaves, self.group.world), *plain_ways]
        if not ways:
            return one
        if (why_not := hooked(module)) is not None:
            return why_not
        try:
            plan, why = self._on_few_rows(plain, module, given, leaves, ways), ""
            if plan is None:
                plan, why = self._on_all_rows(plain, module, given, leaves, ways)
        except NotSplitError as error:
            return error
        if plan is not None and torch.is_grad_enabled() and not self._gradients.add_up(plain, module, given, plan):
            return other_gradients(module)
        return plan or one or refusal(module, given, leaves, plain_ways or ways, why)

    def _on_few_rows(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, leaves: list[Any], ways: list[Way]
    ) -> SlicePlan | None:
        """The plan, proven on a few rows of the batch, which take little time and memory. Only if every output is rows
        of the batch: a mean or a sum may hold for some rows and not for others (padding)."""
        for number, (batch_leaf, cuts) in enumerate(ways):
            batch, few = batch_of(leaves, batch_leaf, cuts), FEW * self.group.world + 1
            if batch <= few:
                return None
            some = some_rows(given, leaves, cuts, few)
            plan, _ = self._try(plain, module, some, (batch_leaf, cuts), self._whole(plain, module, some))
            if plan is not None and not (number and plan.is_idle):
                return None if plan.shaky else plan
        return None

    def _on_all_rows(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, leaves: list[Any], ways: list[Way]
    ) -> tuple[SlicePlan | None, str]:
        """The plan, or why there is none."""
        whole = self._whole(plain, module, given)
        trouble = ""
        for number, way in enumerate(ways):
            plan, why = self._try(plain, module, given, way, whole)
            # A module that mixes samples gives the same if only an argument that it ignores is cut: no proof.
            if plan is not None and not (number and plan.is_idle):
                return plan, ""
            trouble = trouble or why
        return None, trouble

    def _whole(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> SeenCall:
        """The dry run on the whole batch, in a mode in which the module can run; its output is FAILED if in none."""
        subject = uncompiled(module)  # a compiled module is proven uncompiled: no extra compilation
        self._all_eval, self._graph, self._shift = False, False, False
        whole = self._observe(plain, subject, given)
        if any(self._agree(torch.is_grad_enabled() and whole.output is FAILED)):
            self._graph = True  # the module uses its own graph: a hook on a tensor, a gradient inside
            whole = self._observe(plain, subject, given)
        if any(self._agree(whole.output is FAILED)):
            self._all_eval = True
            whole = self._observe(plain, subject, given)
        failed = next(filter(None, self.group.gather_objects(whole.error, "the proof")), "")
        return SeenCall(FAILED, {}, {}, error=failed) if failed else whole

    def _try(
        self, plain: Callable[..., Any], module: nn.Module, given: Any, way: Way, whole: SeenCall
    ) -> tuple[SlicePlan | None, str]:
        """The plan for this way of cutting the arguments, or why there is none."""
        if whole.output is FAILED:
            return None, f"when it was tried out {whole.error}"
        subject, (batch_leaf, cuts) = uncompiled(module), way
        hidden = asleep(subject)
        split = split_of(tree.leaves(given), batch_leaf, cuts, self.group)
        piece, roles, doubt = self._compare(plain, subject, given, cuts, split, whole)
        proven = roles is not None and None not in roles
        if all(self._agree(proven)):
            if hidden or any(self._agree(whole.is_random)):
                # Again with other values in the place of zero weights, and with other random numbers.
                self._shift = whole.is_random
                with woken(hidden):
                    other = self._observe(plain, subject, given)
                    other_piece, other_roles, more_doubt = self._compare(plain, subject, given, cuts, split, other)
                self._shift = False
                proven, doubt = other_roles is not None and None not in other_roles, doubt or more_doubt
                roles = other_roles if hidden else roles
                piece, whole = (piece, whole) if proven else (other_piece, other)
            if any(self._agree(doubt)) and all(self._agree(proven)):
                proven = self._holds_in_double(plain, subject, given, cuts, split, hidden)
        if not all(self._agree(proven)):
            why = "" if proven else reason(piece, whole)
            return None, next(filter(None, self.group.gather_objects(why, "the proof")), "")
        common = tuple(filter(None, self._roles_of_rank_0(roles or [])))
        states = self._states(piece, whole, split, module, functools.partial(self._with_graph, plain, subject, given))
        buffers = self._buffers(piece, whole, split, module)
        left = [*(role for _, role in states), *(role for *_, role in buffers)]
        plan = SlicePlan(
            batch_leaf,
            cuts,
            common,
            states,
            buffers,
            draws=piece.rules,
            compiled=any(map(is_compiled, module.modules())),
            rows=split.batch,
            shaky=any(map(_is_shaky, common, tree.leaves(whole.output))) or any(map(_is_blended, left)),
        )
        return plan, ""

    def _with_slopes(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        ask: Callable[[Any], Any],
        split: Split | None = None,
        expected: tuple[Drawn, ...] = (),
    ) -> SeenCall:
        """A dry run with a graph, in eval mode: dropout and batch norm are seen to elsewhere."""
        self._all_eval, self._graph = True, True
        if split is None:
            return self._observe(plain, module, given, ask=ask)
        with self._split_for_norms(split):
            return self._observe_all(plain, module, given, split, expected, ask)

    def _observe(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        split: Split | None = None,
        expected: tuple[Drawn, ...] = (),
        ask: Callable[[Any], Any] | None = None,
    ) -> SeenCall:
        """A dry run: of a slice, if there is a `split`; `expected` are then the draws of the whole batch."""
        still = nn.Module if self._all_eval else () if self._norms_see_batch() else BatchNorm
        drawing = self._draws.rehearsal(split, expected)
        self._averages.begin()
        try:
            return rehearse(plain, module, given, drawing, still=still, graph=self._graph, shift=self._shift, ask=ask)
        finally:
            self._averages.end()

    def _observe_all(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        split: Split,
        expected: tuple[Drawn, ...],
        ask: Callable[[Any], Any] | None = None,
    ) -> SeenCall:
        """Observes the call on every worker's slice. Batch norms may use collectives: if one worker fails, all fail."""
        try:
            seen = self._observe(plain, module, given, split, expected, ask)
            self.group.agree(failed=seen.output is FAILED)
        except CalledOff:
            seen = SeenCall(FAILED, {}, {})  # the worker that failed reports the reason
        if self.group.off:
            self.group.begin_again()
        return seen

    def _compare(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        cuts: dict[int, int],
        split: Split,
        whole: SeenCall,
        tolerance: float | None = None,
    ) -> tuple[SeenCall, list[Role | None] | None, bool]:
        """The call on this worker's slice, the resulting roles, and whether a comparison was too close to decide."""
        leaves = tree.leaves(given)
        with torch.no_grad(), self._split_for_norms(split):
            piece = self._observe_all(plain, module, cut_leaves(given, leaves, cuts, split), split, whole.draws)
        roles = self._roles(piece.output, whole.output, split, tolerance)
        if piece.streams != whole.streams:
            roles = None
        if tolerance is not None or not is_float32(whole.output):
            return piece, roles, False
        if not all(self._agree(roles is not None and None not in roles)):
            return piece, roles, False
        strict = self._roles(piece.output, whole.output, split, CLEAR)
        return piece, roles, None in (strict or ())

    def _holds_in_double(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        cuts: dict[int, int],
        split: Split,
        hidden: list[nn.Parameter],
    ) -> bool:
        """Whether slices and whole batch agree in float64, where rounding is negligible; also True if float64 cannot be
        tried."""
        with woken(hidden):
            copied = in_double(module, given)
        if not all(self._agree(copied is not None)) or copied is None:
            return True
        double, exact = copied
        whole = self._observe(plain, double, exact)
        if any(self._agree(whole.output is FAILED)):
            return True
        piece, roles, _ = self._compare(plain, double, exact, cuts, split, whole, IN_DOUBLE)
        return piece.output is FAILED or (roles is not None and None not in roles)

    def _roles(self, piece: Any, whole: Any, split: Split, tolerance: float | None = None) -> list[Role | None] | None:
        """The role of each output (None if it has none); None if the output structures differ. Every worker calls this,
        also one whose slice failed: outputs that are not rows are compared collectively."""
        wholes, pieces = tree.leaves(whole), tree.leaves(piece)
        fine = tree.structure(piece) == tree.structure(whole) and piece is not FAILED
        roles: list[Role | None] = []
        values: list[Any] = []
        for i, target in enumerate(wholes):
            own = pieces[i] if fine else None
            dim, uneven = row_dim(own, target, split) if isinstance(target, torch.Tensor) else (None, 0)
            if dim is not None:
                roles.append(Role("rows", dim, uneven=uneven, order=memory_order(target)))
                rows = split.rows_of(uneven)
                # Rows of a sample are adjacent, or (time · batch, …) not.
                close_rows = [close(own, rows_of(target, dim, rows, spread=s), tolerance) for s in (False, True)]
                values.append({"rows": close_rows})
                continue
            roles.append(None)
            divisor = self._averages.divisor_of(own)  # of the last observed call: this worker's piece
            counted = None if divisor is None else float(divisor) * (split.mine > 0)
            values.append((on_host(own), split.share, split.mine, counted))
        # One exchange tells which rows agree on all workers, and whether an output that is not rows is the same on all
        # workers, a mean or a sum.
        for i, column in enumerate(zip(*self.group.gather_objects(values, "the proof"), strict=True)):
            role, roles[i] = roles[i], None
            if role is not None and all(isinstance(found, dict) for found in column):
                adjacent, spread = (all(found["rows"][kind] for found in column) for kind in (0, 1))
                roles[i] = replace(role, spread=not adjacent) if adjacent or spread else None
            elif role is None and not any(isinstance(found, dict) for found in column):
                roles[i] = blend_role(wholes[i], list(column), tolerance)
        return roles if fine else None

    def _with_graph(self, plain: Callable[..., Any], module: nn.Module, given: Any) -> dict[Place, Any]:
        """The values that the call on the whole batch leaves in attributes, with their graphs."""
        kept, self._graph = self._graph, True
        seen = self._observe(plain, module, given)
        self._graph = kept
        return seen.states

    def _states(
        self,
        piece: SeenCall,
        whole: SeenCall,
        split: Split,
        module: nn.Module,
        with_graph: Callable[[], dict[Place, Any]],
    ) -> tuple[tuple[Place, Role], ...]:
        """The values that the call leaves in attributes, with their roles: they are outputs too."""
        # A thread of the script may change a variable meanwhile, and not on every worker.
        told = self.group.gather_objects(sorted(whole.states, key=repr), "the proof")
        places = [place for place in map(tuple, told[0]) if all(place in map(tuple, other) for other in told)]
        pieces = tuple(piece.states.get(place) for place in places)
        roles = self._roles(pieces, tuple(whole.states[place] for place in places), split) or []
        # A list that is shorter on a slice has an item per row: its items cannot be combined.
        here = {place[:2] for place in whole.states.keys() ^ piece.states.keys()}
        uneven = {tuple(place) for some in self.group.gather_objects(here, "the proof") for place in some}
        roles = [None if place[:2] in uneven else role for place, role in zip(places, roles, strict=True)]
        roles = self._roles_of_rank_0(roles)
        lost = [place for place, role in zip(places, roles, strict=True) if role is None]
        left = with_graph() if lost and torch.is_grad_enabled() else {}
        for place in lost:
            path, name = place[:2]
            where = f"its attribute {f'{path}.{name}'.lstrip('.')}" if is_in_module(place) else f"the variable {name}"
            # A value with a graph may be a part of the loss (an MoE's balance): the training would be another.
            if any(self._agree(getattr(left.get(place), "requires_grad", False))):
                raise NotSplitError(
                    f"{describe(module)} stores a result with a gradient in {where}, and the results on slices do "
                    "not add up to that on the whole batch.",
                    advice=f"To run this module whole on every worker: --whole {name_of(module)}",
                )
            self.group.pulse.notice(
                f"{describe(module)} stores a result in {where}: it covers worker 0's slice only. To get it for "
                "the whole batch, return it from the model."
            )
        return tuple((place, role) for place, role in zip(places, roles, strict=True) if role is not None)

    def _buffers(
        self, piece: SeenCall, whole: SeenCall, split: Split, module: nn.Module
    ) -> tuple[tuple[str, str, Role], ...]:
        """The buffers that the call changes depending on its rows, with the roles of the changes."""
        keys = [key for key, change in sorted(whole.buffers.items()) if not self._changes_equally(piece, key, change)]
        pieces = tuple(piece.buffers.get(key) for key in keys)
        roles = self._roles(pieces, tuple(whole.buffers[key] for key in keys), split) or []
        roles = self._roles_of_rank_0(roles)
        for (path, name), role in zip(keys, roles, strict=True):
            if role is None and torch.is_grad_enabled() and module.training:
                raise NotSplitError(
                    f"{describe(module)} changes its buffer {f'{path}.{name}'.lstrip('.')} depending on the rows that "
                    "it sees, and the changes on slices do not add up to the change on the whole batch.",
                    advice=f"To run this module whole on every worker: --whole {name_of(module)}",
                )
        return tuple((*key, role) for key, role in zip(keys, roles, strict=True) if role and role.kind != "same")

    def _changes_equally(self, piece: SeenCall, key: tuple[str, str], change: torch.Tensor) -> bool:
        """Whether a buffer changes equally on the whole batch and on every slice: it counts calls."""
        return all(self._agree(close(piece.buffers.get(key), change)))

    def _agree(self, value: bool) -> list[bool]:
        return self.group.gather_objects(value, "the proof")

    def _roles_of_rank_0(self, roles: list[Role | None]) -> list[Role | None]:
        """Rank 0's roles; other workers may find another dimension if sizes coincide."""
        told = [None if role is None else asdict(role) for role in roles]
        first = self.group.gather_objects(told, "the proof")[0]
        return [None if role is None else Role(**role | {"order": tuple(role["order"])}) for role in first]


def _is_blended(role: Role) -> bool:
    return role.kind in ("mean", "sum", "average")


def _is_shaky(role: Role, output: Any) -> bool:
    """Whether the role may not hold for the next batch: a mean or a sum (a mask), or a tensor equal on all workers."""
    return _is_blended(role) or (role.kind == "same" and isinstance(output, torch.Tensor))
