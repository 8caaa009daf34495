"""Records a step of an unmodified script so that its loss can be computed again under other weights.

From a training call of a model to the optimizer's step, the calls that gradients pass through are noted: outermost
module calls as a whole, torch functions outside of them one by one. Everything else is constant: inputs, labels, masks,
random numbers, detached tensors. Replaying the notes under other weights gives the loss that the script would have had.

Scripts for which this does not work are detected and reported: a loss with parts from before the model's call, several
optimizers, closures, scaled losses, compiled code. The first step is replayed at once, and must give the script's own
loss.
"""

from __future__ import annotations

import io
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from paceline.script import rng, tree
from paceline.script.proof.surroundings import State
from paceline.script.seams.stage import Stage
from paceline.torch_private import current_function_mode, is_compiled, parameters_in

MOST_CALLS = 10_000  # noted per step: more are a loop without a backward
EXACT = 1e-3  # largest relative error of a replayed loss …
NEARLY = 0.25  # … and with low precision, dropout or split batches, which change the loss


class ReplaySlot:
    """Stands for a tensor that is computed during a replay."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(slots=True)
class Call:
    """One call, with slots in place of the results of earlier calls."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    made: list[int | None]  # the slot of each leaf of its result
    returns: bool = True  # False: the call changes its first argument in place


@dataclass(slots=True)
class ReplayedStep:
    """One step of a script, as notes."""

    calls: list[Call] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)  # slots; the step follows the gradient of their sum
    models: list[nn.Module] = field(default_factory=list)
    versions: list[tuple[Tensor, int]] = field(default_factory=list)  # of the inputs, at the time of the call
    samples: int = 0

    @property
    def is_intact(self) -> bool:
        """Whether no input has been overwritten since."""
        return all(tensor._version == version for tensor, version in self.versions)

    def loss(self) -> Tensor:
        """The loss under the models' current weights and modes."""
        values: dict[int, Any] = {}

        def put(leaf: Any) -> Any:
            return values[leaf.number] if isinstance(leaf, ReplaySlot) else leaf

        for call in self.calls:
            args = tree.replace(call.args, put)
            result = call.function(*args, **tree.replace(call.kwargs, put))
            made = tree.leaves(result if call.returns else args[0])
            if len(made) != len(call.made):
                raise TypeError("the model returns another structure in eval mode than in training mode")
            values.update((slot, leaf) for slot, leaf in zip(call.made, made, strict=True) if slot is not None)
        return torch.stack([values[slot].double() for slot in self.losses]).sum()


class Notes(TorchFunctionMode):
    """Passes the functions that a script calls outside of its models to `note`."""

    def __init__(self, note: Callable[..., None]) -> None:
        super().__init__()
        self.note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.note(func, args, kwargs, result)
        return result


class Replay:
    """Keeps the last steps of one worker's script: at least one, and more up to `samples`. `trouble` says why there are
    none. Install it after the seams: it must see the script's calls, not a worker's slices."""

    def __init__(self, stage: Stage, samples: int) -> None:
        self.stage, self.samples = stage, samples
        self.steps: deque[ReplayedStep] = deque()
        self.optimizer: Any = None
        self.trouble = ""
        self._now = ReplayedStep()
        self._slots: dict[int, int] = {}  # id → slot
        self._alive: list[Any] = []  # keeps tensors alive so that ids stay unique
        self._values: list[Tensor] = []  # of the losses
        self._open = self._stepping = self._checked = False
        self._mode = Notes(self._note)
        self._streams: Any = None
        stage.subscribe(self)

    def install(self) -> Callable[[], None]:
        """Patches module calls. Returns a function that removes the patch."""
        plain = nn.Module.__call__

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            stage = self.stage
            if self.trouble or stage.depth or stage.backward_depth or stage.aside or not _has_parameters(module):
                return plain(module, *args, **kwargs)
            return self._call(plain, module, args, kwargs)

        def remove() -> None:
            nn.Module.__call__ = plain  # type: ignore[method-assign]

        nn.Module.__call__ = __call__  # type: ignore[method-assign]
        return remove

    # -- seams -----------------------------------------------------------------------------------------------------

    def before_backward(self, losses: list[Tensor]) -> None:
        if self.trouble or not self._open:
            self._give_up("a backward went through no call of a module in training mode" if not self._open else "")
            return
        for loss in losses:
            slot = self._slots.get(id(loss))
            if slot is None or loss.dim():
                self._give_up("its backward does not start at a single number computed from the model's output")
                return
            self._now.losses.append(slot)
            self._values.append(loss.detach())

    def before_step(self, optimizer: Any) -> None:
        self._stepping = True
        self.optimizer = self.optimizer or optimizer
        if optimizer is not self.optimizer:
            self._give_up("the script has several optimizers, so there is no single loss")
        if _is_called_from("torch.amp.grad_scaler"):
            self._give_up("its loss is scaled by a changing factor (GradScaler)")
        if self._open and not self.trouble and self._now.losses:
            if not self._checked:
                self._check_replay()
            if not self.trouble:
                self._keep()
        self._close()

    def after_step(self, optimizer: Any) -> None:
        self._stepping = False

    # -- taking notes ----------------------------------------------------------------------------------------------

    def _call(self, plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not self._open:
            if not (torch.is_grad_enabled() and module.training):
                return plain(module, *args, **kwargs)
            if self._stepping:
                self._give_up("the optimizer computes the loss itself (a closure)")
                return plain(module, *args, **kwargs)
            self._open = True
            self._streams = None if self._checked else rng.snapshot()
            self._mode.__enter__()
        if "call" in vars(self.stage) or is_compiled(module):
            self._give_up("the model is compiled, and compiled code has no second derivative")
            return plain(module, *args, **kwargs)
        with self._without_mode():
            output = plain(module, *args, **kwargs)
        if torch.is_grad_enabled() and not self.trouble:
            if not self._now.samples:
                first = tree.first_tensor((args, kwargs))
                self._now.samples = 1 if first is None else int(first.shape[0])
            if module not in self._now.models:
                self._now.models.append(module)
            self._note(module, args, kwargs, output)
        return output

    def _note(self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        if not self._open or self.trouble:
            return
        returns = function is not Tensor.__setitem__
        leaves = tree.leaves(result if returns else args[0])
        if not any(isinstance(leaf, Tensor) and leaf.grad_fn is not None for leaf in leaves):
            return
        now = self._now
        if len(now.calls) >= MOST_CALLS:
            self._give_up(f"it makes more than {MOST_CALLS:,} calls between two steps")
            return
        # Slots of arguments before those of results: an in-place call returns its argument.
        call = Call(function, tree.replace(args, self._slot_of), tree.replace(kwargs, self._slot_of), [], returns)
        for leaf in leaves:
            call.made.append(self._new_slot(leaf) if isinstance(leaf, Tensor) else None)
        now.calls.append(call)

    def _new_slot(self, tensor: Tensor) -> int:
        self._alive.append(tensor)
        slot = self._slots[id(tensor)] = len(self._alive)
        return slot

    def _slot_of(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if (slot := self._slots.get(id(leaf))) is not None:
            return ReplaySlot(slot)
        if leaf.grad_fn is not None:
            self._give_up("a part of its loss was computed before the model was called")
        elif not isinstance(leaf, nn.Parameter):
            self._now.versions.append((leaf, leaf._version))
        return leaf

    def _check_replay(self) -> None:
        """Replays this step before its weights change: the replay must give its loss."""
        self._checked = True
        expected = math.fsum(float(value) for value in self._values)
        soft = self.stage.group.world > 1 or self._has_low_precision() or rng.drawn_since(self._streams)
        try:
            with self._without_mode(), self.aside(), _as_it_was(self._now.models):
                found = float(self._now.loss().detach())
        except Exception as error:
            self._give_up(f"its loss cannot be replayed: {first_line(error)}")
            return
        finally:
            self._streams = None
        off = abs(found - expected)
        if math.isfinite(expected) and not off <= (NEARLY if soft else EXACT) * max(abs(expected), 1e-3):
            self._give_up(f"its replayed loss is {found:.4g}, and the original was {expected:.4g}")

    def _has_low_precision(self) -> bool:
        halves = (torch.float16, torch.bfloat16)
        lowered = any(mod.startswith(("precision=", "accumulate=")) for mod in self.stage.run.mods)
        return lowered or any(tensor.dtype in halves for tensor in self._alive)

    def _keep(self) -> None:
        self.steps.append(self._now)
        while len(self.steps) > 1 and sum(step.samples for step in self.steps) - self.steps[0].samples >= self.samples:
            self.steps.popleft()

    def _give_up(self, why: str) -> None:
        self.trouble = self.trouble or why
        if self.trouble:
            self.steps.clear()

    def _close(self) -> None:
        """Ends the step. Also removes the mode if it is on top: a script may have pushed a mode of its own."""
        if self._open and current_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._open = False
        self._now, self._slots, self._alive, self._values = ReplayedStep(), {}, [], []

    @contextmanager
    def _without_mode(self) -> Iterator[None]:
        """Notes nothing inside a model, and adds no overhead there."""
        on_top = current_function_mode() is self._mode
        if on_top:
            self._mode.__exit__(None, None, None)
        try:
            yield
        finally:
            if on_top:
                self._mode.__enter__()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Makes module calls plain: whole, on this worker only, without seams."""
        self.stage.depth += 1
        try:
            yield
        finally:
            self.stage.depth -= 1


@contextmanager
def _as_it_was(models: list[nn.Module]) -> Iterator[None]:
    """Puts back what calls of the models change, and drops what they print."""
    states = [State(model) for model in models]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), torch.enable_grad():
            yield
    finally:
        for state in reversed(states):
            state.put_back()


def _is_called_from(module: str) -> bool:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def _has_parameters(module: nn.Module) -> bool:
    return next(parameters_in(module), None) is not None


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
