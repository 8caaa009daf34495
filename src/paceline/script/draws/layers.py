"""Layers of torch whose dropout is drawn in C++: attention, and recurrent networks of several layers.

On a CPU both are computed here as torch computes them, with dropout as a step of its own. GPU kernels draw inside: such
a call keeps its own kernel, its workers draw different numbers, and a notice says that they are not those of one
process. In a dry run these kernels run without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from paceline.script.draws.dropout import dropout
from paceline.script.draws.rows import Draws
from paceline.torch_private import plain_dropout, safe_softmax

HALVES = (torch.float16, torch.bfloat16)
Plain = Callable[..., Any]
ATTENTION = "attention dropout on a GPU"
RECURRENT = "dropout between the layers of a recurrent network on a GPU"


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
    """F.scaled_dot_product_attention. With dropout, torch computes it on a CPU as here (its `math` form)."""
    rest: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if dropout_p == 0.0 or query.is_nested:
        return plain(query, key, value, attn_mask, dropout_p, is_causal, **rest)
    if query.is_cuda:
        draws.told.add(ATTENTION)
        p = 0.0 if draws.rehearsing else dropout_p
        with draws.apart():
            return plain(query, key, value, attn_mask, p, is_causal, **rest)
    dtype = query.dtype
    if dtype in HALVES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.size(-1)))
    weights = torch.matmul(query * root, key.transpose(-2, -1) * root)
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), -math.inf)
        weights = weights + attn_mask
    weights = safe_softmax(weights, -1)
    weights = dropout(draws, plain_dropout, weights, dropout_p, True)
    return torch.matmul(weights, value).to(dtype)


def recurrent(draws: Draws, plain: Plain, *args: Any) -> Any:
    """torch.lstm, gru, rnn_tanh and rnn_relu: (input, hx, weights, bias, layers, dropout, train, bidirectional,
    batch_first), or packed: (data, batch_sizes, hx, weights, bias, layers, dropout, train, bidirectional)."""
    packed = isinstance(args[1], torch.Tensor) and isinstance(args[3], (list, tuple))
    layers, p, train = args[5 if packed else 4], args[6 if packed else 5], args[7 if packed else 6]
    if layers < 2 or not p or not train or packed or args[0].dim() != 3:
        return plain(*args)
    x, hx, weights, bias, _, _, _, bidirectional, batch_first = args
    if x.is_cuda:
        draws.told.add(RECURRENT)
        with draws.apart():
            return plain(*args[:5], 0.0 if draws.rehearsing else p, *args[6:])
    lstm = not isinstance(hx, torch.Tensor)
    states, directions = (hx if lstm else (hx,)), 2 if bidirectional else 1
    each = len(weights) // layers
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for layer in range(layers):
        own = [state.narrow(0, layer * directions, directions) for state in states]
        x, *end = plain(
            *(x, own if lstm else own[0], weights[layer * each : (layer + 1) * each]),
            *(bias, 1, 0.0, train, bidirectional, False),
        )
        ends.append(end)
        if layer < layers - 1:
            x = dropout(draws, plain_dropout, x, p, True)
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(column) for column in zip(*ends, strict=True)))
