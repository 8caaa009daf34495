"""Precision: the model's forward under autocast, with outputs converted back to float32.

Changes: products and convolutions are computed in bfloat16 (8 bits) or float16 (11 bits, of a smaller range); the other
ops, the loss, the weights and their updates stay float32. With fp16, gradients are scaled during backward and unscaled
when backward returns; a step whose gradients are infinite at that scale is skipped. Applies to devices that are fast in
this type: bfloat16 from Ampere on, float16 also on older GPUs. Can break: code that reads dtypes inside the model; with
fp16, code that reads gradients of non-leaf tensors (they are scaled), optimizers with a closure (refused), and clipping
by value, which hides an infinite gradient.

By hand:

    with torch.autocast(device.type, torch.bfloat16):
        output = model(images)
    output = output.float()

    # with torch.float16:
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from paceline.errors import ScriptError
from paceline.mods import catalog, prospects
from paceline.script import tree
from paceline.script.seams.stage import Stage, call_site
from paceline.strategies.mirrored import leaves_of, put_first
from paceline.torch_private import parameters_in

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Mod:
    """Wraps the outermost call of every model. The script's own autocast inside the model stays in force."""

    def __init__(self, value: str) -> None:
        self.dtype = DTYPES[value]
        self._cast = self._own = False  # calls that the mod has cast, calls under the script's own autocast

    def on_stage(self, stage: Stage) -> None:
        self.stage = stage
        stage.subscribe(self)
        self.scaler = Scaler(stage) if self.dtype is torch.float16 else None
        self.widen = widen if are_read(stage.run.mods) else torch.Tensor.float

    def on_model(self, module: nn.Module) -> None:
        if self.scaler is not None and any(parameter.device.type == "cpu" for parameter in parameters_in(module)):
            self.stage.pulse.notice("precision=fp16: float16 is slow on a CPU; precision=bf16 may be faster.")

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            first = next(parameters_in(module), None)
            device = "cpu" if first is None else first.device.type
            if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) is self.dtype:
                self._own = True
                return plain(module, *args, **kwargs)
            self._cast = True
            if self.scaler is not None and torch.is_grad_enabled():
                self.scaler.meet_inputs((args, kwargs))
            with torch.autocast(device, self.dtype):
                output = plain(module, *args, **kwargs)
            return tree.replace(output, self._to_float)

        return call

    def idle(self) -> str:
        return prospects.AUTOCAST if self._own and not self._cast else ""

    def _to_float(self, leaf: Any) -> Any:
        half = isinstance(leaf, torch.Tensor) and leaf.dtype in DTYPES.values()
        return self.widen(leaf) if half else leaf


# -- gradient scaling for fp16 ----------------------------------------------------------------------------------------
# The loss's gradient is multiplied by a power of two (the scale), and each leaf's gradient is divided by it. So `.grad`
# is always unscaled, for clipping, printing, accumulating. A step with infinite gradients is skipped, and the scale
# halves; the scale doubles after 2000 steps with finite gradients. All workers hold the same gradients, hence decide
# the same.


FIRST = 2.0**16
GROWTH = 2000  # consecutive steps with finite gradients before the scale doubles
SMALLEST = 1.0  # gradients that are infinite at this scale are infinite in the plain script, too


class Scaler:
    """One for all models and optimizers of a script."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.scale = FIRST
        self.skipped = 0
        self._used = FIRST  # the scale of the last backward
        self._at_work = False  # inside a backward; torch.autograd.grad is not scaled
        self._fine = 0  # steps with finite gradients since the last change of the scale
        self._first: weakref.ref[Any] | None = None  # the optimizer whose steps are counted
        self._met: WeakIdKeyDictionary = WeakIdKeyDictionary()  # leaves with an unscaling hook
        self._sites: set[int] = set()
        stage.subscribe(self)

    # -- backward --------------------------------------------------------------------------------------------------

    def before_forward(self, module: nn.Module) -> None:
        for parameter in parameters_in(module):
            self._meet(parameter)

    def meet_inputs(self, given: Any) -> None:
        """Hooks the leaves behind a model's inputs, which may be new at every step (adversarial examples)."""
        inputs = [leaf for leaf in tree.leaves(given) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        for tensor in inputs:
            self._meet(tensor)
        for leaf, _ in leaves_of([tensor for tensor in inputs if not tensor.is_leaf]):
            self._meet(leaf)

    def before_backward(self, losses: list[torch.Tensor]) -> None:
        site = call_site()
        if site not in self._sites:
            self._sites.add(site)
            for leaf, _ in leaves_of(losses):
                self._meet(leaf)

    def around_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grads: Any = None, **rest: Any) -> Any:
            losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            given = [grads] if isinstance(grads, torch.Tensor) else list(grads or [None] * len(losses))
            scaled = [
                torch.full_like(loss, self.scale) if grad is None else grad * self.scale
                for loss, grad in zip(losses, given, strict=True)
            ]
            self._at_work, self._used = True, self.scale
            try:
                return plain(losses, scaled, **rest)
            finally:
                self._at_work = False

        return backward

    def _meet(self, leaf: torch.Tensor) -> None:
        if leaf.is_leaf and leaf.requires_grad and leaf not in self._met:
            handle = leaf.register_hook(self._true)
            self._met[leaf] = True
            put_first(leaf._backward_hooks, handle.id)  # the script's own hooks see the unscaled gradient

    def _true(self, grad: torch.Tensor) -> torch.Tensor:
        return grad / self._used if self._at_work else grad

    _true.is_linear = True  # type: ignore[attr-defined]  # a strategy may average before this hook

    # -- steps -----------------------------------------------------------------------------------------------------

    def on_optimizer(self, optimizer: Any) -> None:
        plain = optimizer.step.__func__

        @wraps(plain)
        def step(self_: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
            if closure is not None:
                raise ScriptError(
                    "--mod precision=fp16: the optimizer computes its gradients inside its step (a closure), where a "
                    "step with infinite gradients cannot be skipped.",
                    advice="Use bfloat16, which needs no gradient scaling: --mod precision=bf16",
                )
            if self._are_fine(self_):
                return plain(self_, *args, **kwargs)
            self.stage.emit("before_step", self_)
            self.stage.emit("after_step", self_)
            return None

        optimizer.step = types.MethodType(step, optimizer)

    def _are_fine(self, optimizer: Any) -> bool:
        """Whether to make this step; adjusts the scale. Waits for the device."""
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if _are_finite([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]):
            self._fine += self._first() is optimizer
            if self._fine >= GROWTH:
                self.scale, self._fine = self.scale * 2, 0
            return True
        self._fine = 0
        if self._used <= SMALLEST:
            return True
        if self.scale == self._used:  # another optimizer may have halved the scale after the same backward
            self.scale /= 2
        self.skipped += 1
        if self.skipped == 1:
            self.stage.pulse.notice(
                f"precision=fp16: a step was skipped: its gradients were infinite at a scale of {self._used:g}; "
                "the scale is halved until gradients are finite. This is usual in the first steps."
            )
        return False


def _are_finite(grads: list[torch.Tensor]) -> bool:
    kinds: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        dense = (grad.coalesce().values() if grad.is_sparse else grad).detach()
        if dense.numel():
            kinds.setdefault((dense.device, dense.dtype), []).append(dense)
    largest = [torch.stack(torch._foreach_norm(alike, float("inf"))) for alike in kinds.values()]
    return all(bool(torch.isfinite(norms).all()) for norms in largest)


# -- float32 outputs, and their half-precision originals --------------------------------------------------------------
# The script gets the float32 copy. A compiled loss reads the original instead, which is half as large, and converts
# each number on the fly, which is exact. With many classes that saves most of a loss's memory traffic. An entry lives
# as long as the script holds the copy or a view of it.


LARGE = 1 << 24  # elements: for smaller tensors the saving is negligible
# Compile modes without CUDA graphs: the next call overwrites an original in a graph's memory.
MODES = ("compile=default", "compile=max-autotune-no-cudagraphs")

# Copy → its original, and the version counters of both (in-place changes).
_originals: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def are_read(mods: Sequence[str]) -> bool:
    """Whether one of these mods reads originals. If not, none is kept, because an original takes memory."""
    return any(str(asked) in MODES for asked in catalog.parse(mods))


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a loss over the tensor is worth compiling."""
    return tensor.is_cuda and tensor.numel() >= LARGE


def widen(narrow: torch.Tensor) -> torch.Tensor:
    """A float32 copy; `original_of` then finds its original."""
    wide = narrow.float()
    if is_large(wide) and type(narrow) is torch.Tensor and not narrow.is_inference():
        _originals[wide] = narrow, (wide._version, narrow._version)
    return wide


def original_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The original of a copy, or of a view of the whole copy: the same numbers and shape, and the same gradients. None
    if the tensor is not a copy, if the copy or the original was changed since, or if the script reads the gradient of
    the copy itself."""
    copy = tensor if tensor._base is None else tensor._base
    narrow, versions = _originals.get(copy, (None, None))
    if narrow is None or (copy._version, narrow._version) != versions or not _learns_alike(tensor, copy, narrow):
        return None
    if tensor is copy:
        return narrow
    # Contiguous, with the same number of elements: a view of the whole copy, in memory order.
    whole = tensor.numel() == copy.numel() and all(one.is_contiguous() for one in (tensor, copy, narrow))
    return narrow.view(tensor.shape) if whole else None


def _learns_alike(tensor: torch.Tensor, copy: torch.Tensor, narrow: torch.Tensor) -> bool:
    """Whether a gradient of the tensor reaches the original, and no other tensor or hook on the way."""
    if not tensor.requires_grad or not narrow.requires_grad:
        return tensor.requires_grad == narrow.requires_grad
    if tensor.grad_fn is None or any(one.retains_grad or one._backward_hooks for one in (tensor, copy)):
        return False
    # One view at most: the hooks of a tensor between two views could not be checked.
    return tensor is copy or (
        tensor.grad_fn.name() == "ViewBackward0" and tensor.grad_fn.next_functions == ((copy.grad_fn, 0),)
    )
