"""Attention with dropout, for own rows: bit for bit the dropout of one process.

On a CPU, and where torch takes its `math` form, attention is computed here as torch computes it, with dropout as a step
of its own. A fused kernel of a GPU draws inside, from Philox at (seed, offset + a constant for each sample): for own
rows the generator's offset is moved by that of the rows before them, and set to the whole batch's end afterwards. Torch
documents no such constant, so it is found, once for each kind of call, by a small try on the device. Where it cannot
be found, workers draw different numbers, and a notice says that they are not those of one process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from paceline.script.draws.dropout import at_place, dropout
from paceline.script.draws.rows import Draws
from paceline.script.rows.crossings import memory_order
from paceline.torch_private import (
    DispatchMode,
    fused_attention_choice,
    fused_attention_settings,
    is_capturing,
    own_saved_tensors,
    plain_dropout,
    safe_softmax,
)

Plain = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)
TOLD = "attention dropout on a GPU"
FEW = 4  # samples that a try computes alone; their offset is a multiple of four, as torch wants it
KERNELS, BACKWARD = (
    tuple(
        getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention{way}").default
        for name in ("flash", "efficient", "cudnn")
    )
    for way in ("", "_backward")
)


class Steps(NamedTuple):
    """How far the generator's offset moves."""

    sample: int  # from the draws of a sample to those of the next one
    used: int  # after a call, for each sample


MATH = Steps(0, 0)  # no fused kernel
_found: dict[Any, Steps | None] = {}  # by the kind of call, whatever its number of samples
_known: dict[Any, Steps] = {}  # the same by all sizes and strides: quickly looked up


def attention(
    draws: Draws,
    plain: Plain,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """F.scaled_dot_product_attention inside a sliced call."""
    rest: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if dropout_p == 0.0 or query.is_nested:
        return plain(query, key, value, attn_mask, dropout_p, is_causal, **rest)
    if not query.is_cuda:
        in_rows = lambda weights: dropout(draws, plain_dropout, weights, dropout_p, True)  # noqa: E731
        return _math(query, key, value, attn_mask, is_causal, in_rows, **rest)
    piece = draws.place(query)
    if piece is None:
        return plain(query, key, value, attn_mask, 0.0 if draws.rehearsing else dropout_p, is_causal, **rest)

    def call(*given_and_p: Any) -> torch.Tensor:
        return plain(*given_and_p, is_causal, **rest)

    given = (query, key, value, attn_mask)
    steps = None
    if piece.dim == 0 and not is_capturing():
        kind = (plain, fused_attention_settings(), is_causal, scale, enable_gqa)
        chosen = lambda: fused_attention_choice(query, key, value, attn_mask, dropout_p, is_causal, **rest)  # noqa: E731
        steps = steps_of(kind, call, given, chosen)
    if steps is None:
        draws.told.add(TOLD)
        with draws.apart():
            return call(*given, dropout_p)
    if steps == MATH:
        in_rows = lambda weights: at_place(weights, dropout_p, piece)  # noqa: E731
        return _math(query, key, value, attn_mask, is_causal, in_rows, **rest)
    made, _ = of_rows(lambda *given: call(*given, dropout_p), given, steps, piece.start, piece.whole)
    return made


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    dropped: Callable[[torch.Tensor], torch.Tensor],
    *,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """As torch computes it in its `math` form."""
    dtype = query.dtype
    if dtype in HALVES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    if is_causal:
        mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.size(-1)))
    weights = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
        weights = weights + mask
    return torch.matmul(dropped(safe_softmax(weights, -1)), value).to(dtype)


def of_rows(call: Callable[..., Any], given: Sequence[Any], steps: Steps, start: int, batch: int) -> tuple[Any, int]:
    """The call's result for rows from `start` on, of a batch of so many; and how much later in the generator's numbers
    they begin than the call did. The offset must be a multiple of four: rows are lent in front until it is one, and
    left out of the result."""
    query = given[0]
    generator = generator_of(query)
    lent = 0 if start * steps.sample % 4 == 0 else next(n for n in (1, 2, 3) if (start - n) * steps.sample % 4 == 0)
    rows, begin = len(query), generator.get_offset()
    if lent:
        given = [_lengthened(one, lent) if _has_rows(one, query) else one for one in given]
    generator.set_offset(begin + (start - lent) * steps.sample)
    made = call(*given)
    generator.set_offset(begin + _up(batch * steps.used))
    if lent:
        made = (
            _cut(made, lent, rows) if isinstance(made, torch.Tensor) else tuple(_cut(one, lent, rows) for one in made)
        )
    return made, lent * steps.sample


def steps_of(
    kind: Any, call: Callable[..., Any], given: Sequence[Any], chosen: Callable[[], int] = lambda: 0
) -> Steps | None:
    """The steps of calls of this kind on arguments like these; None if they cannot be found. `call` takes the arguments
    and the dropout; `chosen` tells the kernel that torch takes for arguments of these sizes."""
    query = given[0]
    tensors = [one for one in given if isinstance(one, torch.Tensor)]
    needs_grad = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    kind = (kind, query.get_device(), needs_grad, autocast)
    here = (kind, *[(one.shape, one.stride(), one.dtype) for one in tensors])
    steps = _known.get(here)
    if steps is None and (steps := _steps_of((kind, chosen()), call, given, needs_grad)) is not None:
        _known[here] = steps
    return steps


def _steps_of(kind: Any, call: Callable[..., Any], given: Sequence[Any], needs_grad: bool) -> Steps | None:
    query = given[0]
    like = tuple(
        (one.shape[_has_rows(one, query) :], one.dtype, memory_order(one)) if isinstance(one, torch.Tensor) else None
        for one in given
    )
    kind = (kind, like)
    if kind not in _found:
        try:
            with own_saved_tensors():
                tried = [_tried(one, needs_grad) for one in given[:3]]
                _found[kind] = _find(call, [*tried, *(_repeated(one, query) for one in given[3:])])
        except RuntimeError:  # no memory for it, or a case that torch refuses, as the call itself will
            return None
    return _found[kind]


def _find(call: Callable[..., Any], given: list[Any]) -> Steps | None:
    query, key = given[:2]
    generator = generator_of(query)
    state = generator.get_state()
    try:
        begin = generator.get_offset()
        with _Kernels() as kernels:
            whole = _first(call(*given, 0.5))
        used, left = divmod(generator.get_offset() - begin, 2 * FEW)
        if not kernels.found:
            return MATH
        own = [one[FEW:] if _has_rows(one, query) else one for one in given]
        heads = math.prod(query.shape[1:-2])
        for sample in (heads * 32, heads * query.shape[-2] * key.shape[-2], used):
            generator.set_offset(begin + FEW * sample)
            if torch.allclose(_first(call(*own, 0.5)), whole[FEW:], rtol=1e-2, atol=1e-2):
                return None if left else Steps(sample, used)
        return None
    finally:
        generator.set_state(state)


class _Kernels(DispatchMode):
    """Whether a fused kernel is called."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func in KERNELS
        return func(*args, **(kwargs or {}))


def generator_of(tensor: torch.Tensor) -> torch.Generator:
    index = tensor.device.index
    return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]


def _first(made: Any) -> torch.Tensor:
    found: torch.Tensor = (made if isinstance(made, torch.Tensor) else made[0]).detach()
    return found


def _tried(one: torch.Tensor, needs_grad: bool) -> torch.Tensor:
    """A tensor like this one, of few samples. Its numbers are no draws."""
    order = memory_order(one) or tuple(range(one.dim()))
    made = torch.empty_permuted((2 * FEW, *one.shape[1:]), order, dtype=one.dtype, device=one.device)
    numbers = torch.arange(made.numel(), device=one.device, dtype=torch.float32).mul_(0.7).sin_()
    return made.copy_(numbers.view(made.shape)).requires_grad_(needs_grad and one.requires_grad)


def _repeated(one: Any, query: torch.Tensor) -> Any:
    """The mask of the first sample for each of few samples."""
    return one.detach()[:1].expand(2 * FEW, *one.shape[1:]) if _has_rows(one, query) else one


def _has_rows(one: Any, query: torch.Tensor) -> bool:
    """Whether an argument has a row for each sample: not a mask of fewer dimensions, or one for all samples."""
    return isinstance(one, torch.Tensor) and one.dim() == query.dim() and len(one) == len(query)


def _cut(made: Any, lent: int, rows: int) -> Any:
    """One of a kernel's results without the rows lent to it."""
    has_rows = isinstance(made, torch.Tensor) and made.dim() > 2 and len(made) == lent + rows
    return made.narrow(0, lent, rows) if has_rows else made


def _lengthened(one: torch.Tensor, lent: int) -> torch.Tensor:
    return torch.cat([one.detach()[:1].expand(lent, *one.shape[1:]), one])


def _up(offset: int) -> int:
    return (offset + 3) // 4 * 4
