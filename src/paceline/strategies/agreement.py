"""Agreement: weights, and what models are called with, are compared between the workers now and then.

A worker whose update is another one (a learning rate that depends on the time, noise that nobody seeded) trains a model
of its own, and the losses do not show it: outputs are gathered, so all workers compute the same loss from the mixture.
So at a model's call, in each of its first steps and then ever more rarely, every worker takes a digest of the model's
weights and of the call's arguments (`digest`, `watched`), and at each `torch.save` one of the weights. Digests go into
ledgers, whose totals ride on the tail of the next backward (`ledger`); where there is no backward, and at the script's
end, they have a message of their own. Workers whose totals differ look at the values together (`differing`) and stop
the run, unless it is rounding.

Every worker passes every seam in the same order, with one exception: a script may save on rank 0 only. Nothing waits
for the others there.
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from paceline.comm.call_site import script_line
from paceline.script import chance
from paceline.script.seams.stage import Stage
from paceline.strategies.differing import Differing
from paceline.strategies.digest import digest
from paceline.strategies.ledger import Ledger
from paceline.strategies.watched import Look, Watched, arguments, layout

HELD = 8  # updates without a call of its own, after which a model is let go


class Agreement:
    """Of one worker among several."""

    def __init__(self, stage: Stage, name_of: Callable[[nn.Module], str]) -> None:
        self.stage, self.group, self._name_of = stage, stage.group, name_of
        self.weights, self.arguments, self.saved, self.seeds = Ledger(), Ledger(), Ledger(), Ledger()
        self.ledgers = (self.seeds, self.arguments, self.weights, self.saved)  # likeliest cause first
        self.models: weakref.WeakKeyDictionary[nn.Module, Watched] = weakref.WeakKeyDictionary()
        # Called of late. Held, so that they are there on all workers, or on none: a model that the script lets go of is
        # gone at another moment on each of them, and its last update is to be compared.
        self._held: dict[nn.Module, Watched] = {}
        self._met = 0
        self.differing = Differing(stage, self.models, (self.weights, self.saved))
        self.steps = 0  # of the script
        self._updates = 0  # optimizer steps; where there are none, backwards
        self._updated = ""  # the line of the last one
        self._called: Watched | None = None  # the model whose call is under way
        self._looking = False  # … and whether that is looked at
        self._agreed: list[int] = []  # what all workers last showed alike
        self._alone = False  # no backward will carry what is looked at
        self._messages = self._messages_then = 0  # how often totals were compared, now and at the last look without one
        self._saves = 0  # updates at the last save
        self._pid = os.getpid()

    # -- seams -----------------------------------------------------------------------------------------------------

    def before_forward(self, module: nn.Module) -> None:
        watched = self._held.get(module) or self._meet(module)
        self._called, self._looking, self._alone = watched, False, False
        due, idle = watched.tick(self._updates)
        if due and not _is_traced():
            self._looking = True
            self._look(self.weights, [module])
            if idle:
                self._alone = self._messages == self._messages_then
                self._messages_then = self._messages
        watched.look_at_buffers()

    def on_slices(self, module: nn.Module, given: Any) -> None:
        """A call is about to be computed in slices: all workers were given the same arguments."""
        if self._looking and self._called is not None:
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
        """The weights that go into a file are compared later, with the next message."""
        in_order = os.getpid() == self._pid and threading.current_thread() is threading.main_thread()
        if in_order and self._held and self._saves != self._updates and not _is_traced():
            self._saves = self._updates
            self._look(self.saved, list(self._held))

    def on_end(self) -> None:
        """The script has ended: the last update is compared, too. Every worker calls it; waits for all of them."""
        if self._met and not self.stage.aside:
            self._look(self.weights, list(self._held))
            self.exchange()

    # -- messages --------------------------------------------------------------------------------------------------

    def riders(self, *, wait: bool = False) -> list[int]:
        """What this worker shows: two numbers a ledger."""
        for number, about in chance.seeds_noted():
            self.seeds.add([], about, number)
        return [number for ledger in self.ledgers for number in ledger.shown(wait=wait)]

    def compare(self, shown: Sequence[list[int]]) -> None:
        """What all workers have shown in one message. PartedError where they differ by more than rounding."""
        self._messages += 1
        if all(row == self._agreed for row in shown):
            return  # nothing is new
        self._agreed, settled = [], False
        for place, ledger in enumerate(self.ledgers):
            if ledger.disagrees([(row[2 * place], row[2 * place + 1]) for row in shown]):
                self.differing.look(ledger, self.steps)
                ledger.settle()
                settled = True
        if not settled and all(row == shown[0] for row in shown):
            self._agreed = list(shown[0])

    def exchange(self) -> None:
        """A message of its own. Every worker calls it; waits for all of them, and for the GPU."""
        mine = torch.tensor(self.riders(wait=True), dtype=torch.int64, device="cpu")
        self.compare(self.group.gather_vectors(mine, "the digests of weights").tolist())

    # -- looking ---------------------------------------------------------------------------------------------------

    def _meet(self, module: nn.Module) -> Watched:
        watched = self.models.get(module)
        if watched is None:
            watched = self.models[module] = Watched(self._met, self._name_of(module))
            self._met += 1
        self._held[module] = watched
        return watched

    def _look(self, ledger: Ledger, models: list[nn.Module]) -> None:
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
            self._let_go()

    def _let_go(self) -> None:
        """Of models that the script has turned away from, after a last look."""
        old = [module for module, watched in self._held.items() if self._updates - (watched.updates or 0) > HELD]
        if old:
            self._look(self.weights, old)
        for module in old:
            del self._held[module]


def _is_traced() -> bool:
    """Where weights are not to be read: inside a transform of torch.func, or while a CUDA graph is captured."""
    return torch._C._functorch.peek_interpreter_stack() is not None or (
        torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    )
