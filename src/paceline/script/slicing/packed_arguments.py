"""Packed sequences that a script makes outside a model: the call gets, and gives, padded steps and lengths instead.

These can be cut into rows, and are packed inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils import rnn

from paceline.script import tree
from paceline.script.proof import packed


class Steps(NamedTuple):
    """A packed sequence, padded: rows, time, …"""

    padded: torch.Tensor
    lengths: torch.Tensor


def packed_in(given: Any) -> rnn.PackedSequence | None:
    """The first packed sequence among a call's arguments; None if there is none."""
    args, kwargs = given
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, rnn.PackedSequence)), None)


def padded(given: Any) -> Any:
    """The arguments, or an output, with padded steps in the place of packed ones."""
    return _replaced(given, rnn.PackedSequence, lambda one: Steps(*rnn.pad_packed_sequence(one, batch_first=True)))


def inside(plain: Callable[..., Any], given: rnn.PackedSequence) -> Callable[..., Any]:
    """The call that packs its padded arguments, and pads its output. All rows are packed in the order of the first
    argument `given`, in which dropout is drawn."""
    rows = int(given.batch_sizes[0])

    def pack(steps: Steps) -> rnn.PackedSequence:
        if len(steps.lengths) == rows and not packed.in_trial():
            return _in_order(steps, given)
        return rnn.pack_padded_sequence(steps.padded, steps.lengths, batch_first=True, enforce_sorted=False)

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _replaced((args, kwargs), Steps, pack)
        return padded(plain(module, *args, **kwargs))

    return call


def packed_as(output: Any, given: rnn.PackedSequence) -> Any:
    """The output, with its steps packed in the order of an argument."""
    return _replaced(output, Steps, lambda steps: _in_order(steps, given))


def _in_order(steps: Steps, given: rnn.PackedSequence) -> rnn.PackedSequence:
    rows, lengths, order = steps.padded, steps.lengths, given.sorted_indices
    if order is not None:
        rows, lengths = rows.index_select(0, order), lengths.index_select(0, order.to(lengths.device))
    data, sizes, *_ = rnn.pack_padded_sequence(rows, lengths, batch_first=True)
    return rnn.PackedSequence(data, sizes, order, given.unsorted_indices)


def _replaced(value: Any, kind: type, put: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return put(value)
    if isinstance(value, tuple):
        return tree.with_entries(value, [_replaced(item, kind, put) for item in value])
    if type(value) is list:
        return [_replaced(item, kind, put) for item in value]
    return {key: _replaced(item, kind, put) for key, item in value.items()} if type(value) is dict else value
