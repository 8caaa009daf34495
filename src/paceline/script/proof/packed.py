"""Packed sequences inside a call: time steps of samples, sorted by length. No operation on these has a row a sample.

Recurrent layers compute each sequence alone, so a worker packs its own rows. A trial computes what depends on the same
rows instead, with padding: the recurrent layer on padded steps. Neither is in a call's list of operations. Code that
looks into a packed sequence ends the trial.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from paceline.script.patches import all_of, patch
from paceline.script.proof.recorder import CannotTry, hidden, mark

MARK = "pack_padded_sequence"
LAYERS: tuple[Any, ...] = (nn.GRU, nn.LSTM, nn.RNN)
_tried = False  # the calls under way are trials


class Stand(rnn.PackedSequence):
    """Stands for a packed sequence in a trial."""

    steps: torch.Tensor  # padded: time, rows, features
    lengths: torch.Tensor
    mask: torch.Tensor  # time, rows, 1

    @classmethod
    def of(cls, steps: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor) -> Stand:
        made = tuple.__new__(cls, (None, None, None, None))
        made.steps, made.lengths, made.mask = steps.masked_fill(~mask, 0), lengths, mask
        return made

    def __iter__(self) -> Any:
        raise CannotTry("it looks into a packed sequence")

    def __getattribute__(self, name: str) -> Any:
        if name in ("data", "batch_sizes", "sorted_indices", "unsorted_indices"):
            raise CannotTry("it looks into a packed sequence")
        return super().__getattribute__(name)


def in_trial() -> bool:
    return _tried


def find() -> Callable[[], None]:
    """Patches what makes and takes packed sequences; returns a function that removes the patches."""
    return all_of([patch(rnn, name, _made(getattr(rnn, name), stand)) for name, stand in STANDS.items()])


def _made(plain: Callable[..., Any], stand: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def made(*args: Any, **kwargs: Any) -> Any:
        mark(MARK)
        with hidden():
            found = stand(*args, **kwargs) if _tried else NotImplemented
            return plain(*args, **kwargs) if found is NotImplemented else found

    return made


def _pack(input: torch.Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True) -> Any:
    if not isinstance(lengths, torch.Tensor) or input.dim() < 3:
        return NotImplemented
    steps = input.transpose(0, 1) if batch_first else input
    mask = torch.arange(len(steps), device=lengths.device)[:, None] < lengths
    return Stand.of(steps, lengths, mask.to(steps.device)[..., None])


def _pad(sequence: Any, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None) -> Any:
    if not isinstance(sequence, Stand):
        return NotImplemented
    steps = sequence.steps.masked_fill(~sequence.mask, padding_value)
    if total_length is not None and total_length > len(steps):
        steps = F.pad(steps, (0, 0, 0, 0, 0, total_length - len(steps)), value=padding_value)
    return steps.transpose(0, 1) if batch_first else steps, sequence.lengths.cpu() * 1


STANDS: dict[str, Callable[..., Any]] = {"pack_padded_sequence": _pack, "pad_packed_sequence": _pad}


@contextmanager
def apart(*, tried: bool) -> Iterator[None]:
    """Inside, recurrent layers that get packed sequences are no part of the list of operations. `tried`: in a trial."""
    global _tried

    def of(plain: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(plain)
        def forward(self: Any, input: Any, hx: Any = None) -> Any:
            if not isinstance(input, Stand if tried else rnn.PackedSequence):
                return plain(self, input, hx)
            mark(MARK)
            with hidden():
                return _on_steps(plain, self, input, hx) if isinstance(input, Stand) else plain(self, input, hx)

        return forward

    own, before = [kind.forward for kind in LAYERS], _tried
    _tried = tried
    for kind in LAYERS:
        kind.forward = of(kind.forward)
    try:
        yield
    finally:
        _tried = before
        for kind, forward in zip(LAYERS, own, strict=True):
            kind.forward = forward


def _on_steps(plain: Callable[..., Any], layer: Any, given: Stand, hx: Any) -> Any:
    if layer.dropout and layer.training and layer.num_layers > 1:
        raise CannotTry("it draws dropout for a packed sequence, in whose order no slice can follow")
    steps = given.steps.transpose(0, 1) if layer.batch_first else given.steps
    made, state = plain(layer, steps, hx)
    made = made.transpose(0, 1) if layer.batch_first else made
    return Stand.of(made, given.lengths, given.mask), state
