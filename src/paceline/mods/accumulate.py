"""Accumulate: a model's call in K micro-batches, each recomputed in backward. Less memory, the same numbers.

Changes: memory against time: only one micro-batch's activations are in memory at a time, and each is computed twice.
Applies to training calls whose outputs have a row for each sample, or are means or sums over samples, which is proven
operation by operation; other calls are refused.
Dropout of a micro-batch is that of its rows in the whole batch. Can break: batch norm, which sees one micro-batch (and
updates its running statistics for each). The smaller the micro-batches, the lower the throughput.

By hand:

    for x, y in zip(images.chunk(K), labels.chunk(K)):
        loss = F.cross_entropy(model(x), y) * len(x) / len(images)
        loss.backward()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.errors import ScriptError
from paceline.mods.checkpointing import Recomputed
from paceline.script import rng, tree
from paceline.script.draws import compiled, table
from paceline.script.draws.rows import AstrayError
from paceline.script.patches import all_of
from paceline.script.proof import value_checks
from paceline.script.proof.arguments import versions_of
from paceline.script.proof.backward_hooks import hooked
from paceline.script.proof.plan import SlicePlan
from paceline.script.proof.plans import Plans
from paceline.script.proof.proof import Part, Proof
from paceline.script.proof.reasons import unbatched
from paceline.script.proof.recorder import CannotTry
from paceline.script.proof.ways import batch_of, ways_to_cut
from paceline.script.rows.crossings import Split
from paceline.script.seams import batch_norm
from paceline.script.seams.stage import Stage
from paceline.script.slicing.loss_denominators import Averages
from paceline.script.slicing.parts import joined, sizes_of, weights_of, within
from paceline.torch_private import BatchNorm, is_compiled, uncompiled


class Mod:
    """Wraps the training calls of every model; with several workers, each worker's sliced call."""

    def __init__(self, value: str) -> None:
        self.parts = int(value)
        self._recomputed: weakref.WeakKeyDictionary[nn.Module, Recomputed] = weakref.WeakKeyDictionary()

    def on_stage(self, stage: Stage) -> None:
        self.stage, self._plans = stage, Plans(MicroBatches(stage, self.parts).prove)
        if stage.group.world == 1:
            stage.views.draws.may_be_split = lambda: True
            stage.undo.append(table.find(stage.views.draws))
        stage.subscribe(self)

    def on_model(self, module: nn.Module) -> None:
        if any(isinstance(child, BatchNorm) for child in module.modules()):
            self.stage.pulse.notice(
                f"accumulate: batch norm sees each of the {self.parts} micro-batches separately, so numbers differ."
            )

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not (torch.is_grad_enabled() and module.training):
                return plain(module, *args, **kwargs)
            given = (args, kwargs)
            leaves = tree.leaves(given)
            plan = self._plans.of(module, given, leaves)
            parts = 1 if plan is None else min(self.parts, plan.batch(leaves), *self._slices())
            if plan is None or parts < 2:
                return plain(module, *args, **kwargs)
            try:
                return self._compute(plain, module, given, leaves, plan, parts)
            except (CannotTry, AstrayError) as why:
                raise refusal(module, self.parts, str(why)) from None

        return call

    def _compute(
        self,
        plain: Callable[..., Any],
        module: nn.Module,
        given: Any,
        leaves: list[Any],
        plan: SlicePlan,
        parts: int,
    ) -> Any:
        sizes, versions = sizes_of(plan.batch(leaves), parts), versions_of(leaves, plan.cuts)
        compute, slices = self._recomputed.setdefault(module, Recomputed()), self.stage.views.split
        plan.compiled = plan.compiled or is_compiled(module)
        streams, put_back = rng.snapshot(), compute.before(module)
        with self.stage.views.averages.inside() as averages:
            before, outputs = averages.count, []
            for number, (args, kwargs) in enumerate(cut(given, leaves, plan.cuts, sizes)):
                if number:  # each begins where the call of the whole batch would
                    put_back()
                run = plain
                if not self.stage.views.draws_own:
                    whole, rank = ((sum(sizes),), 0) if slices is None else (slices.sizes, slices.group.rank)
                    run = self._placed(plain, plan, within(whole, rank, parts, number))
                    rng.restore(streams)
                outputs.append(compute(module, run, (module, *args), kwargs))
            if plan.all_count and not averages.all_count():
                raise CannotTry("it adds another term to a mean over targets of which some are ignored or weighted")
            if versions != versions_of(leaves, plan.cuts):
                raise CannotTry("it changes an argument in place, from which backward computes again")
            for what in self.stage.views.draws.told:
                self.stage.views.warn(f"accumulate: {what} has numbers of its own in each micro-batch.")
            return join(outputs, plan, sizes, averages, before)

    def _placed(self, plain: Callable[..., Any], plan: SlicePlan, split: Split) -> Callable[..., Any]:
        """The call of a micro-batch, which draws the numbers of its rows: now, and when it is computed again."""
        draws, rest = self.stage.views.draws, self.stage.views.split

        def call(*args: Any, **kwargs: Any) -> Any:
            if plan.compiled:
                compiled.tell_devices(split.start, split.batch)
            try:
                with draws.in_call(split, plan.draws, by_shape=plan.compiled):
                    return plain(*args, **kwargs)
            finally:
                if plan.compiled:
                    compiled.tell_devices(*((0, 0) if rest is None else (rest.start, rest.batch)))

        return call

    def _slices(self) -> list[int]:
        """The number of rows of each worker, including borrowed rows. All workers must make the same number of
        micro-batches, because batch norms over the whole batch call collectives in each."""
        split = self.stage.views.split
        return [] if split is None else [max(1, size) for size in split.sizes]


# -- micro-batches ----------------------------------------------------------------------------------------------------
# The proof is that of sliced calls (`script.proof`), in one process. Batch norm sees one micro-batch: the mod says so.


class MicroBatches:
    """The proofs of one worker's calls. They make no collective: workers may have different numbers of rows."""

    def __init__(self, stage: Stage, parts: int) -> None:
        self._stage, self._parts = stage, parts
        self._prove = Proof(Part(0, 1), stage.run.batch_dim, stage.views.draws, parts)

    def prove(self, module: nn.Module, given: Any, leaves: list[Any]) -> SlicePlan | None:
        """The plan for calls like this one; None if it has no batch. ScriptError if the model cannot be computed in
        micro-batches."""
        ways = list(ways_to_cut(leaves, self._prove.batch_dim))
        if not ways:
            return None
        if (hook := hooked(module)) is not None:
            raise refusal(module, self._parts, hook.message.removesuffix("."))
        with self._in_trials():
            plan, why = self._prove.first(self._stage.views.own_call, module, given, leaves, ways)
        if plan is None:
            if unbatched(module, given, leaves) is not None or batch_of(leaves, *ways[0]) < 2:
                return None
            raise refusal(module, self._parts, why)
        left = [place[:2] for place, _ in plan.states] + [(path, name) for path, name, _ in plan.buffers]
        for path, name in left:
            where = f"{path or ''}.{name}".lstrip(".")
            raise refusal(
                module, self._parts, f"it keeps values in {where}, which would be of the last micro-batch only"
            )
        return plan

    @contextmanager
    def _in_trials(self) -> Iterator[None]:
        """With the patches that trials need, which a run on one worker does not have."""
        remove = all_of([batch_norm.find(self._stage), value_checks.find()])
        try:
            with self._stage.views.unsplit():
                yield
        finally:
            remove()


def cut(given: Any, leaves: list[Any], cuts: dict[int, int], sizes: list[int]) -> list[Any]:
    """The arguments of each micro-batch."""
    pieces = {i: leaves[i].split(sizes, dim) for i, dim in cuts.items()}
    return [
        tree.rebuild(given, iter([pieces[i][part] if i in cuts else leaf for i, leaf in enumerate(leaves)]))
        for part in range(len(sizes))
    ]


def join(outputs: list[Any], plan: SlicePlan, sizes: list[int], averages: Averages, before: int) -> Any:
    """The output of the whole call, before which so many averages were taken. CannotTry if the number of targets of a
    mean is not known."""
    columns, made = list(zip(*map(tree.leaves, outputs), strict=True)), []
    weights = [weights_of(column, n, plan, sizes, averages, before) for n, column in enumerate(columns)]
    for column, role, each in zip(columns, plan.outputs, weights, strict=True):
        made.append(joined(column, role, sizes, each))
        if role.kind == "average" and each is not None:
            averages.take(made[-1], each.sum())
    return tree.rebuild(outputs[0], iter(made))


def refusal(module: nn.Module, parts: int, why: str) -> ScriptError:
    name = type(uncompiled(module)).__name__
    return ScriptError(
        f"--mod accumulate={parts}: {name} cannot be computed in micro-batches: {why}.",
        advice="Each output must have a row for each sample, or be a mean or a sum over samples (--batch-dim sets the "
        "batch dimension). To save memory in another way, type: --mod checkpointing",
    )
