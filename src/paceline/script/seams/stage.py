"""The stage that a script runs on: it owns the seams, and nothing else.

A seam is a place in a running script where a listener may look or change something. Mods and strategies subscribe to a
seam by having a method of its name; `instrument` connects the seams of an unmodified script to this file.

    on_optimizer(optimizer)      an optimizer was met for the first time
    on_model(module)             a root module is about to be called for the first time
    on_loader(loader)            a DataLoader is about to be iterated for the first time
    on_batch(batch)              a loader hands out a batch
    before_forward(module), after_forward(module)       around the outermost call of a module that has parameters
    before_backward(losses), after_backward(losses)     around an outermost backward
    backward_raised()            instead of after_backward: the backward raised, on every worker
    on_membership(change)        workers were lost, and the others go on (an elastic run): see `membership`
    backward_again()             a worker was lost in the backward, which begins anew without it
    before_step(optimizer), after_step(optimizer)       around an optimizer's step
    on_save(target)              torch.save is about to write
    on_end()                     the script has ended

Five more seams replace a call: each takes `plain` and returns the function to call instead.

    around_forward(plain)        plain(module, …): an outermost call, on the slice if it is sliced
    around_backward(plain)       plain(losses, their gradients, …): an outermost backward
    around_iteration(plain)      plain(loader): the start of a DataLoader's iteration
    around_batch(plain)          plain(iterator): the next batch that a DataLoader collates
    around_length(plain)         plain(loader): a DataLoader's length

Every worker passes every seam, in the same order: listeners may use collectives.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import nn

from paceline.comm.call_site import script_line
from paceline.comm.ending import Ending
from paceline.comm.group import Group
from paceline.errors import PacelineError, ScriptError
from paceline.script import tree
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Usage
from paceline.script.rows.gradients import kept_in, own_of, require_all, whole_of
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.seams import membership
from paceline.script.seams.split_count import SplitCount
from paceline.script.seams.strategy import Strategy
from paceline.script.together import Together
from paceline.script.views import Views
from paceline.settings import RunSettings
from paceline.torch_private import is_transformed, parameters_in

SEAMS = (
    "on_optimizer",
    "on_model",
    "on_loader",
    "on_batch",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "backward_raised",
    "on_membership",
    "backward_again",
    "before_step",
    "after_step",
    "on_save",
    "on_end",
)
AROUND = ("around_forward", "around_backward", "around_iteration", "around_batch", "around_length")


class Stage:
    """The stage of one worker. `only` lists the root modules to distribute (the API); None means all modules."""

    def __init__(
        self,
        run: RunSettings,
        group: Group,
        strategy: Strategy | None = None,
        *,
        only: Sequence[nn.Module] | None = None,
    ) -> None:
        self.run, self.group = run, group
        self.strategy = strategy or Strategy()
        self.strategy.stage = self
        self.axes = self.strategy.axes(group.world)
        # The workers that share rows. A worker without peers is not rank 0 where a strategy is not in lockstep.
        members = self.axes.members(group.rank, "data", "shard") if group.world > 1 else (group.rank,)
        self.rows = group.along("rows", members)
        self.watch, self.pulse = group.watch, group.pulse
        self.only = None if only is None else weakref.WeakSet(only)
        self.aside = False  # the script distributes itself: observe only
        # A stern error that ends the run leaves the script as `Fatal`, which an `except Exception` does not catch.
        self.ending = group.ending = self.rows.ending = Ending(group.pulse)
        self.together = group.together = self.rows.together = Together(self.rows)
        self._pid, self._thread, self._recomputing = os.getpid(), threading.get_ident(), threading.local()
        self.depth = 0  # of module calls: only the outermost is a seam
        self.backward_depth = 0
        self._loads = False  # the script's own thread waits for a loader
        self.stepping: list[Any] = []  # optimizers whose steps run, outermost first: only that one is a seam
        self.roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # called so far
        self.trained: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # … with gradients, in training mode
        self.loaders: weakref.WeakSet[Any] = weakref.WeakSet()  # iterated so far, and still alive
        self.has_loader = False  # one was iterated: `for x in DataLoader(…)` keeps no reference to it
        self.has_optimizer = False
        self._optimizers: list[weakref.ref[Any]] = []  # made so far: all workers know them in the same order
        self.views = Views(self)
        self._listeners: dict[str, list[Callable[..., None]]] = {seam: [] for seam in SEAMS}
        self._around: dict[str, list[Callable[..., Any]]] = {seam: [] for seam in AROUND}
        # Per seam and plain call, that call inside all its wrappers.
        self._wrapped: dict[tuple[str, Callable[..., Any]], Callable[..., Any]] = {}
        self.undo: list[Callable[[], None]] = []  # of patches that a mod needs as long as the seams are in place
        self.subscribe(self.views)
        membership.follow(self)
        self._splits = SplitCount(self)

    def subscribe(self, listener: object) -> None:
        """Listeners are called in the order of subscription, at each seam for which they have a method."""
        for seam in SEAMS:
            if hasattr(listener, seam):
                self._listeners[seam].append(getattr(listener, seam))
        for seam in AROUND:
            if hasattr(listener, seam):
                self._around[seam].append(getattr(listener, seam))

    def emit(self, seam: str, *args: Any) -> None:
        self.ending.check()
        self.pulse.seam = seam
        try:
            for listener in self._listeners[seam]:
                listener(*args)
        except PacelineError as error:
            raise self.ending.carry(error) from None

    def guarded(self, seam: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a seam that the script calls: an error that ends the run leaves the seam as `Fatal`, at this call and
        at each later one."""

        @wraps(seam)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.ending.check()
            try:
                return seam(*args, **kwargs)
            except PacelineError as error:
                raise self.ending.carry(error) from None

        return guarded

    # -- entry points for a running script: called by `instrument` --------------------------------------------------

    def call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The outermost call of a module that has parameters."""
        if self.group.world > 1 and is_transformed():
            return self._call_transformed(plain, module, args, kwargs)
        if self.group.world > 1 and tree.is_on_meta((args, kwargs)):
            with self.inside():  # there are no numbers to split or compare
                return plain(module, *args, **kwargs)
        learning = torch.is_grad_enabled() and module.training
        bare, plain = plain, self.around("around_forward", plain)
        self.ending.check()
        self.depth += 1
        self.watch.enter("forward" if learning else "evaluation")
        first: tuple[Any] | None = None
        try:
            if module not in self.roots:
                self.roots.add(module)
                if any(parameter.is_cuda for parameter in parameters_in(module)):
                    self.watch.use_cuda()
                first = self.views.call_lazy(plain, bare, module, args, kwargs, self.strategy.whole_models)
                self.emit("on_model", module)
                self.strategy.place(module, self.optimizers)
            if learning and module not in self.trained:
                self.trained.add(module)
            self.views.expect(args, kwargs)
            self.emit("before_forward", module)
            self.views.own_call = bare
            output = self.strategy.call(plain, module, args, kwargs) if first is None else first[0]
            self.emit("after_forward", module)
            return output
        except PacelineError as error:
            raise self.ending.carry(error) from None
        finally:
            self.watch.leave()
            self.depth -= 1

    def _call_transformed(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A call inside a torch.func transform (grad, vmap), which sees no gradient and no row that could be exchanged:
        every worker computes it whole."""
        self.views.warn(
            f"The module {type(module).__name__} is called inside a torch.func transform: every worker computes it "
            "whole, and that part gets no faster."
        )
        self.depth += 1
        try:
            return plain(module, *args, **kwargs)
        finally:
            self.depth -= 1

    def around(self, seam: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        """The function to call at this seam instead of `plain`."""
        if not self._around[seam]:
            return plain
        if (seam, plain) not in self._wrapped:
            inner = plain
            for around in self._around[seam]:
                inner = around(inner)
            self._wrapped[seam, plain] = inner
        return self._wrapped[seam, plain]

    def backward(self, plain: Callable[..., Any], tensors: Any, grad_tensors: Any, rest: dict[str, Any]) -> None:
        """An outermost backward. When it returns, every `.grad` is the global gradient."""
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        make_plain(losses)
        if (named := rest.get("inputs")) is not None:
            named = [named] if isinstance(named, torch.Tensor) else list(named)
            require_all(named)
            rest = rest | {"inputs": list(map(kept_in, named)) if self.rows.world > 1 else named}
        crossed = self.rows.crossed
        plain = self.around("around_backward", plain)
        self.ending.check()
        self.backward_depth += 1
        self.watch.enter("backward")
        try:
            self.emit("before_backward", losses)
            again = None
            if self.views.redo is not None:
                told = partial(self.emit, "backward_again")
                held = [p for root in self.roots for p in parameters_in(root)]
                plain, again = self.views.redo.begin_backward(plain, losses, held, rest, told)
            if self.rows.world == 1:
                self._go_back(plain, losses, tensors, grad_tensors, rest)
            else:
                work = (plain, losses, tensors, grad_tensors, rest)
                self.together.do(self._go_back, *work, undo=self._undo_backward, again=again)
            self._splits.count(self.rows.crossed > crossed or self.views.batch_is_cut)
        except PacelineError as error:
            raise self.ending.carry(error) from None
        finally:
            self.watch.leave()
            self.backward_depth -= 1

    def step(self, plain: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An optimizer's step, if the strategy replaces it. A step inside another one's is part of that one."""
        if len(self.stepping) > 1 or self.aside:
            return plain(optimizer, *args, **kwargs)
        try:
            return self.strategy.step(plain, optimizer, *args, **kwargs)
        except PacelineError as error:
            raise self.ending.carry(error) from None

    def shown(self, batch: Any, usages: dict[Hashable, Usage]) -> Any:
        """What the script gets for a batch of its loader. `usages`: of the same loader's batches before."""
        if self.depth or self.aside or self.only is not None or self.is_elsewhere() or self.makes_samples():
            return batch
        if not (self.strategy.whole_models and self.strategy.lockstep):
            return batch
        return self.views.shown(batch, usages)

    def whole(self, value: Any) -> Any:
        """The value with whole tensors, where this worker holds parts. Every worker calls it."""
        if type(self.strategy).full is Strategy.full or self.aside:
            return value
        kinds = (torch.Tensor, nn.Module)
        return tree.replace(value, lambda leaf: self.strategy.full(leaf) if isinstance(leaf, kinds) else leaf)

    @property
    def replaces_steps(self) -> bool:
        """Whether the strategy has a step of its own: otherwise an optimizer's step is not touched."""
        return type(self.strategy).step is not Strategy.step

    @property
    def optimizers(self) -> list[Any]:
        """The script's optimizers, in the order of their making."""
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def meet_optimizer(self, optimizer: Any) -> None:
        """An optimizer was made, or handed over."""
        self.has_optimizer = True
        self._optimizers.append(weakref.ref(optimizer))
        self.emit("on_optimizer", optimizer)

    def _go_back(
        self, plain: Callable[..., Any], losses: list[torch.Tensor], tensors: Any, grads: Any, rest: dict[str, Any]
    ) -> None:
        plain(tensors, self.views.weigh(losses, grads), **rest)
        met = self.pulse.collectives
        self.emit("after_backward", losses)
        if self.rows.world > 1:
            self.together.meet_since(met)

    def _undo_backward(self, first: int, told: list[Any]) -> None:
        self.emit("backward_raised")

    def gradients(self, plain: Callable[..., Any], outputs: Any, inputs: Any, args: Any, kwargs: Any) -> Any:
        """An outermost `torch.autograd.grad`. Only with several workers."""
        asked = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
        require_all(asked)
        if self.backward_depth and not self.strategy.whole_models:
            plain = functools.partial(self._inside_backward, plain)
        if self.rows.world == 1:
            return plain(outputs, inputs, *args, **kwargs)
        crossed = self.rows.crossed
        self.views.refuse_gradients()
        if self.views.redo is not None:
            self.views.redo.refuse("torch.autograd.grad")
        make_plain(outputs)
        found = self.together.do(self._ask_for, plain, outputs, asked, args, kwargs)
        if any(tensor.is_leaf for tensor in asked):
            self._splits.count(self.rows.crossed > crossed)  # counts like a backward in the check that work was split
        return found

    def _inside_backward(
        self, plain: Callable[..., Any], outputs: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, ...]:
        """Weights that a call was lent are not those of the graph: unused, for torch."""
        try:
            found: tuple[Any, ...] = plain(outputs, inputs, *args, **kwargs)
        except RuntimeError as error:
            if "not have been used in the graph" not in str(error):
                raise
            refused = self.no_whole_weights("asks for gradients of weights inside a backward")
            raise self.ending.carry(refused) from error
        return found

    def no_whole_weights(self, what: str) -> ScriptError:
        """The refusal of what needs weights that no worker holds whole at that moment."""
        return ScriptError(
            f"{script_line()} {what}, and under --strategy {self.strategy.name} no worker holds whole weights there.",
            advice="Use --strategy mirrored.",
        )

    def _ask_for(self, plain: Callable[..., Any], outputs: Any, asked: Any, args: Any, kwargs: Any) -> Any:
        found = plain(outputs, tuple(map(own_of, asked)), *args, **kwargs)
        met = self.pulse.collectives
        # A gradient that reaches a leaf from inside a sliced call is local; averaging leaves a whole one unchanged.
        averaged = tuple(
            crossings.average(g, self.rows) if g is not None and tensor.is_leaf else whole_of(g, tensor)
            for g, tensor in zip(found, asked, strict=True)
        )
        self.together.meet_since(met)
        return averaged

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the script's, whose calls come in no order that all workers share. Not
        where autograd recomputes a checkpoint, which may be on a thread of its own."""
        return threading.get_ident() != self._thread and not self.recomputes()

    def recomputes(self) -> bool:
        """Whether autograd recomputes a checkpoint."""
        return getattr(self._recomputing, "now", False)

    def makes_samples(self) -> bool:
        """Whether a dataset, a sampler or a collate function runs: workers make different samples, so a model called
        there is the script's own affair. So it is in a child process of the script, such as a loader's."""
        return self._loads or os.getpid() != self._pid

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A loader makes a batch. A loader that another thread reads says nothing of what the script does meanwhile."""
        before = self._loads
        self._loads = before or threading.get_ident() == self._thread
        try:
            yield
        finally:
            self._loads = before

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What a worker does meanwhile is its own affair: nothing is a seam, and no other worker takes part."""
        before, self.aside = self.aside, True
        try:
            yield
        finally:
            self.aside = before

    @contextmanager
    def as_script(self) -> Iterator[None]:
        """Inside it, a module's call is an outermost one, as if the lines that call it were the script's."""
        depth, self.depth = self.depth, 0
        try:
            yield
        finally:
            self.depth = depth

    def where(self) -> Any:
        """The script's position: inside a sliced call or outside. `back_at` returns to it temporarily."""
        return self.depth, self.views.split_of_call, self.views.gathers, self.views.draws.where()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What the script does meanwhile belongs to a sliced call: it is no seam."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def back_at(self, where: Any) -> Iterator[None]:
        now, before = self.where(), self.recomputes()
        self.depth, self.views.split_of_call, self.views.gathers, draws = where
        self._recomputing.now = True
        try:
            with self.views.draws.at(*draws):
                yield
        finally:
            self.depth, self.views.split_of_call, self.views.gathers, _ = now
            self._recomputing.now = before

    def end(self) -> None:
        """The script has ended. All workers meet first: those of an axis may be in a call, which needs all."""
        if self.ending.first is not None:  # the script caught the error and continued
            raise self.ending.first
        if not self.aside:
            self._splits.end()
            if self.strategy.lockstep and self.rows.world < self.group.world:
                self.group.gather_vectors(torch.zeros(1, device="cpu"), "the end of the script")
        self.emit("on_end")


def call_site() -> int:
    """A number for the stack of lines that led here: equal for two calls from the same call site."""
    frame: Any = sys._getframe(1)
    site = 0
    while frame is not None:
        # The instruction, not the line number: looking up line numbers is slow.
        site = hash((site, id(frame.f_code), frame.f_lasti))
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    return site
