"""Dry runs for the proof: calls a module to see its outputs, changes and random draws, without lasting effects.

A dry run may also change the module temporarily. `woken` replaces weights that are all zero by noise, because zeros
hide whatever comes before them (a head initialised to zero returns zeros for any input). `in_double` computes in
float64, where rounding is too small to be mistaken for a real difference.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.script import rng
from paceline.script.draws.generators import Generators
from paceline.script.slicing import side_effects
from paceline.torch_private import BatchNorm, is_gathered_for_call


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
