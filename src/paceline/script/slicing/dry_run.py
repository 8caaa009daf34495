"""Dry runs for the proof: calls a module to see its outputs, changes and random draws, without lasting effects.

A dry run may also change the module temporarily. `woken` replaces weights that are all zero by noise, because zeros
hide whatever comes before them (a head initialised to zero returns zeros for any input). `in_double` computes in
float64, where rounding is too small to be mistaken for a real difference.
"""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.script import rng, tree
from paceline.script.draws.generators import Generators
from paceline.script.draws.rows import Drawn, DrawRule, Position
from paceline.script.slicing import bounds, side_effects
from paceline.script.slicing.mutations import Containers
from paceline.script.slicing.side_effects import Place
from paceline.torch_private import BatchNorm, is_gathered_for_call

FAILED = object()  # stands for the output of a call that raised


@dataclass(frozen=True, slots=True)
class SeenCall:
    """The observed effects of one call."""

    output: Any
    states: dict[Place, Any]  # tensors and numbers that the call left in attributes
    buffers: dict[tuple[str, str], torch.Tensor]  # the changed buffers: new value minus old
    draws: tuple[Drawn, ...] = ()  # the random numbers drawn
    rules: tuple[DrawRule, ...] = ()  # on a slice: which dimensions of these hold rows
    streams: tuple[int, int] = (0, 0)  # checksums of all random streams and generators afterwards
    is_random: bool = False  # these are others than before
    slopes: Any = None  # what `ask` found
    error: str = ""


def rehearse(
    plain: Callable[..., Any],
    module: nn.Module,
    given: Any,
    drawing: AbstractContextManager[Position],
    *,
    still: Any,
    graph: bool,
    shift: bool = False,
    ask: Callable[[Any], Any] | None = None,
) -> SeenCall:
    """One call without lasting effects. `still`: types of modules that run in eval mode. `graph`: with gradients on,
    for modules that need a graph. `shift`: draws other random numbers than a call without it. `ask` gets the output
    before the script's state is restored."""
    with _on_a_copy(module), undisturbed(module, still=still), torch.set_grad_enabled(graph):
        generators = Generators(module)
        if shift:
            rng.advance()
            generators.advance()
        before = rng.digest(), generators.digest()
        attributes = side_effects.look(module)
        old = {key: buffer.clone() for key, buffer in own_buffers(module)}
        given = tree.replace(given, _copied)  # a call may change its arguments
        containers = Containers(given)
        try:
            with bounds.on_gpus(), drawing as at:
                output = containers.told(plain(module, *given[0], **given[1]))
                slopes = None if ask is None else ask(output)
        except Exception as error:
            return SeenCall(FAILED, {}, {}, error=f"it raised {type(error).__name__}: {error}")
        states = side_effects.changed(module, attributes)
        changes = {
            key: b - old[key] if key in old and old[key].shape == b.shape else b.clone()
            for key, b in own_buffers(module)
            if key not in old or not torch.equal(b, old[key])
        }
        after = rng.digest(), generators.digest()
        drawn = tuple(at.drawn or ()), tuple(at.found)
        return SeenCall(output, states, changes, *drawn, after, after != before, slopes)


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone().requires_grad_(leaf.requires_grad)


@contextlib.contextmanager
def _on_a_copy(module: nn.Module) -> Iterator[None]:
    """Replaces the weights by copies temporarily: a call may change weights (a teacher that follows its student)."""
    kept = [(p, p.data) for p in module.parameters() if not is_lazy(p) and not is_gathered_for_call(p)]
    for p, value in kept:
        p.data = value.clone()
    try:
        yield
    finally:
        for p, value in kept:
            p.data = value


@contextlib.contextmanager
def undisturbed(module: nn.Module, *, still: Any = nn.Module) -> Iterator[None]:
    """Sets eval mode (for modules of the types `still`), no gradients and no output; restores the script's state
    afterwards."""
    modules = list(module.modules())
    attributes = [m.__dict__ | {"_buffers": dict(m._buffers)} for m in modules]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    put_back = side_effects.keep(module)
    # A call may register hooks or make submodules, once, and note that it has: the real call must do it itself.
    registered = [
        (held, held.copy())
        for m in modules
        for name, held in m.__dict__.items()
        if name in side_effects.OWN and name != "_buffers" and isinstance(held, dict)
        if not (name == "_parameters" and any(map(is_gathered_for_call, held.values())))
    ]
    before, generators = rng.snapshot(), Generators(module)
    # The weights change temporarily: autocast must neither use weights that it cast before, nor keep new casts.
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    for m in modules:
        if isinstance(m, still):
            m.__dict__["training"] = False
        m.__dict__["_compiled_call_impl"] = None  # do not compile for a dry run
    try:
        with (
            torch.no_grad(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)
        for m, kept in zip(modules, attributes, strict=True):
            m.__dict__.clear()
            m.__dict__.update(kept)
        for held, before_call in registered:
            if held != before_call:
                held.clear()
                held.update(before_call)
        put_back()
        with torch.no_grad():
            for buffer, kept_value in buffers:
                # Writing to an unchanged buffer would spoil a backward that needs it. Values tell, and not the buffer's
                # version: batch norm's kernels change its statistics without a new version.
                if not _are_equal(buffer, kept_value):
                    buffer.copy_(kept_value)
        rng.restore(before)
        generators.restore()


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.layout is torch.strided and one.shape == other.shape and torch.equal(one, other)


def asleep(module: nn.Module) -> list[nn.Parameter]:
    """Weights that are all zero. Zero biases hide nothing, because they are added."""
    return [
        p
        for name, p in module.named_parameters()
        if not (is_lazy(p) or p.is_meta) and p.is_floating_point() and p.numel()
        if not name.endswith("bias") and _is_zero(p.detach())
    ]


@contextlib.contextmanager
def woken(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Temporarily rebinds `p.data` to seeded noise, the same on every worker. Never in place, so pending backwards are
    unaffected."""
    kept = [p.data for p in parameters]
    for seed, p in enumerate(parameters):
        noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed), device="cpu", dtype=torch.float32)
        width = p.shape[-1] if p.dim() > 1 else 4
        p.data = (noise / width**0.5).to(p.device, p.dtype)
    try:
        yield
    finally:
        for p, value in zip(parameters, kept, strict=True):
            p.data = value


def in_double(module: nn.Module, given: Any) -> tuple[nn.Module, Any] | None:
    """A copy of the module and of its arguments in float64; None if it cannot be made."""
    try:
        return copy.deepcopy(module).double(), tree.replace(given, _doubled)
    except Exception:  # copying a script's own class may raise anything
        return None


def _doubled(leaf: Any) -> Any:
    return leaf.detach().double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _is_zero(tensor: torch.Tensor) -> bool:
    few = tensor.reshape(-1)[:8] if tensor.is_contiguous() else tensor
    return not few.any() and not tensor.any()


def own_buffers(module: nn.Module) -> Iterator[tuple[tuple[str, str], torch.Tensor]]:
    """Numeric buffers by module path and name; without batch norm's, which always depend on the slice."""
    for path, m in module.named_modules():
        for name, buffer in m._buffers.items() if not isinstance(m, BatchNorm) else ():
            if buffer is not None and buffer.dtype is not torch.bool and buffer.layout is torch.strided:
                yield (path, name), buffer


def initialise_lazy(plain: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> None:
    """Initialises lazy parameters with one call: their shapes, and their values from the script's random stream."""
    if any(is_lazy(p) for p in module.parameters()):
        flags = [(m, m.training) for m in module.modules()]
        buffers = [(b, b.clone()) for b in module.buffers() if not is_lazy(b)]
        module.eval()
        with torch.no_grad():
            plain(module, *args, **kwargs)
            for buffer, kept in buffers:  # the call itself is still to come
                buffer.copy_(kept)
        for m, training in flags:
            m.training = training
