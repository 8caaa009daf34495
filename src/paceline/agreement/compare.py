"""Agreement: compares weights, and the arguments of model calls, between the workers from time to time.

A worker with a different update (a learning rate that depends on the time, unseeded noise) trains a different model,
and the losses do not show it: outputs are gathered, so all workers compute the same loss from the mixture. So every
worker takes a digest of the model's weights and of the call's arguments (`digest`, `watched`) at a model's call, in
each of its first steps and evaluations and then less and less often; and of the weights at each `torch.save`. Digests
go into ledgers, whose totals ride on the next backward's gradient message (`ledger`). For an evaluation, without a
backward, and at the script's end, totals are sent in a message of their own. Workers whose totals differ compare the
values (`differing`) and stop the run, unless the difference is rounding.

Every worker passes every seam in the same order, with one exception: a script may save on rank 0 only. `on_save` does
not wait for other workers.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from paceline.agreement.digest import digest
from paceline.agreement.ledger import Ledger
from paceline.agreement.report import Differing
from paceline.agreement.watched import Look, Watched, arguments, layout
from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.script import chance
from paceline.script.seams.stage import Stage
from paceline.torch_private import is_capturing, is_transformed

HELD = 8  # updates without a call, after which a model is released


class Agreement:
    """The comparison on one of several workers."""

    def __init__(
        self,
        stage: Stage,
        name_of: Callable[[nn.Module], str],
        group: Group | None = None,
        *,
        of_parts: bool = True,
        of_seeds: bool = True,
    ) -> None:
        """`group`: the workers that must hold the same; those that share rows, unless others are given. `of_parts`:
        they hold the same parts of weights that a strategy has divided. `of_seeds`: seeds are compared, too."""
        self.stage, self.group, self._name_of = stage, stage.rows if group is None else group, name_of
        self._of_parts, self._of_seeds = of_parts, of_seeds
        self.weights, self.arguments, self.saved, self.seeds = Ledger(), Ledger(), Ledger(), Ledger()
        self.ledgers = (self.seeds, self.arguments, self.weights, self.saved)  # likeliest cause first
        self.models: weakref.WeakKeyDictionary[nn.Module, Watched] = weakref.WeakKeyDictionary()
        # The models called lately. The references keep them alive on all workers: a model that the script drops is
        # freed at a different moment on each worker, and its last update must still be compared.
        self._held: dict[nn.Module, Watched] = {}
        self._met = 0
        self.differing = Differing(stage, self.models, (self.weights, self.saved), self.group)
        self.steps = 0  # of the script
        self._updates = 0  # optimizer steps; without an optimizer, backwards
        self._updated = ""  # the line of the last update
        self._called: Watched | None = None  # the model that is being called
        self._looking = False  # … and whether that call is compared
        self._agreed: list[int] = []  # the totals that all workers last had in common
        self._alone = False  # no backward will carry the totals
        self._messages = self._messages_then = 0  # comparisons so far, and at the last look without an update
        self._saves = 0  # updates at the last save
        self._pid = os.getpid()

    # -- seams -----------------------------------------------------------------------------------------------------

    def before_forward(self, module: nn.Module) -> None:
        watched = self._held.get(module) or self._meet(module)
        self._called, self._looking, self._alone = watched, False, False
        due, kind = watched.tick(self._updates, evaluates=not (module.training and torch.is_grad_enabled()))
        if due and not _is_traced():
            self._looking = True
            self._look(self.weights, [module])
            if kind == "evaluation":  # what the script prints of it may come before any backward
                self._alone = True
            elif kind == "idle":
                self._alone = self._messages == self._messages_then
                self._messages_then = self._messages
        watched.look_at_buffers()

    def on_slices(self, module: nn.Module, given: Any) -> None:
        """Before a call in slices: all workers must have the same arguments."""
        if self._looking and self._called is not None:
            with self.stage.watch.checking():
                found, plain = arguments(given)
                look = Look((self._called.number,), self.steps, self._updated, script_line(), tuple(found), plain)
                self.arguments.add([value for one in found for value in one.digest], look, zlib.crc32(plain.encode()))

    def after_forward(self, module: nn.Module) -> None:
        if self._called is not None:
            self._called.note_changed_buffers()
        self._called, self._looking = None, False
        if self._alone:
            self._alone = False
            self.exchange()

    def after_backward(self) -> None:
        if not self.stage.has_optimizer:
            self._note_update(ends_step=True)

    def after_step(self, *, ends_step: bool) -> None:
        self._note_update(ends_step=ends_step)

    def on_save(self) -> None:
        """Takes a digest of the saved weights; it is compared with the next message."""
        in_order = os.getpid() == self._pid and threading.current_thread() is threading.main_thread()
        if in_order and self._held and self._saves != self._updates and not _is_traced():
            self._saves = self._updates
            self._look(self.saved, list(self._held))

    def on_end(self) -> None:
        """Compares the last update after the script. Every worker calls it; waits for all of them."""
        if self._met and not self.stage.aside:
            self._look(self.weights, list(self._held))
            self.exchange()

    # -- messages --------------------------------------------------------------------------------------------------

    def riders(self, *, wait: bool = False) -> list[int]:
        """The totals of this worker: two numbers per ledger."""
        for number, about in chance.seeds_noted() if self._of_seeds else ():
            self.seeds.add([], about, number)
        news = any(ledger.has_news for ledger in self.ledgers)
        with self.stage.watch.checking() if news else nullcontext():
            return [number for ledger in self.ledgers for number in ledger.shown(wait=wait)]

    def compare(self, shown: Sequence[list[int]]) -> None:
        """Compares the totals of all workers in one message. PartedError if they differ by more than rounding."""
        self._messages += 1
        if all(row == self._agreed for row in shown):
            return  # no new digests
        self._agreed, settled = [], False
        for place, ledger in enumerate(self.ledgers):
            if ledger.disagrees([(row[2 * place], row[2 * place + 1]) for row in shown]):
                self.differing.look(ledger, self.steps)
                ledger.settle()
                settled = True
        if not settled and all(row == shown[0] for row in shown):
            self._agreed = list(shown[0])

    def exchange(self) -> None:
        """Sends the totals in a message of their own. Every worker calls it; waits for all of them, and for the GPU."""
        with self.stage.watch.checking():
            mine = torch.tensor(self.riders(wait=True), dtype=torch.int64, device="cpu")
            self.compare(self.group.gather_vectors(mine, "the digests of weights").tolist())

    # -- looking ---------------------------------------------------------------------------------------------------

    def _meet(self, module: nn.Module) -> Watched:
        watched = self.models.get(module)
        if watched is None:
            watched = self.models[module] = Watched(self._met, self._name_of(module), of_parts=self._of_parts)
            self._met += 1
        self._held[module] = watched
        return watched

    def _look(self, ledger: Ledger, models: list[nn.Module]) -> None:
        with self.stage.watch.checking():
            weights = [named for module in models for named in self.models[module].weights(module)]
            look = Look(tuple(self.models[m].number for m in models), self.steps, self._updated, script_line())
            ledger.add(digest(tensor for _, tensor in weights), look, layout(weights))

    def _note_update(self, *, ends_step: bool) -> None:
        self._updates += 1
        self.steps += ends_step
        for watched in self._held.values():
            if watched.is_due_next():
                self._updated = script_line()
                break
        if len(self._held) > 1:
            self._release_unused()

    def _release_unused(self) -> None:
        """Releases models that the script no longer calls, after a last digest."""
        old = [module for module, watched in self._held.items() if self._updates - watched.last > HELD]
        if old:
            self._look(self.weights, old)
        for module in old:
            del self._held[module]


def _is_traced() -> bool:
    """Whether weights cannot be read: inside a torch.func transform, or during CUDA graph capture."""
    return is_transformed() or is_capturing()
