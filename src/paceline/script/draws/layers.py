"""Recurrent networks of several layers, whose dropout is drawn in C++.

On a CPU they are computed here as torch computes them, with dropout as a step of its own. GPU kernels draw inside: such
a call keeps its own kernel, its workers draw different numbers, and a notice says that they are not those of one
process. In a dry run these kernels run without dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paceline.script.draws.dropout import dropout
from paceline.script.draws.rows import Draws
from paceline.torch_private import plain_dropout

Plain = Callable[..., Any]
RECURRENT = "dropout between the layers of a recurrent network on a GPU"


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
