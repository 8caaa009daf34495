"""Dropout of own rows, computed as torch's kernels compute it, with the mask of the whole batch's dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from paceline.script.draws import philox
from paceline.script.draws.rows import Draws, Piece
from paceline.torch_private import plain_bernoulli_

ALPHA = 1.7580993408473766  # of torch's alpha dropout: minus the value that SELU goes towards
Plain = Callable[..., Any]


def dropout(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """torch.dropout: one draw an element."""
    if not _draws(x, p, train) or (piece := draws.place(x)) is None:
        return plain(x, p, train)
    return at_place(x, p, piece)


def at_place(x: torch.Tensor, p: float, piece: Piece) -> torch.Tensor:
    """The same, of rows whose place is known."""
    return _fused(x, p, piece) if x.is_cuda else x * _mask(x, p, piece).div_(1 - p)


def dropout_(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(x)) is None:
        return plain(x, p, train)
    return x.mul_(_mask(x, p, piece).div_(1 - p))


def feature_dropout(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """torch.feature_dropout: one draw a sample and channel."""
    if not _draws(x, p, train) or (piece := draws.place(feature := _feature(x))) is None:
        return plain(x, p, train)
    return x * _mask(feature, p, piece).div_(1 - p)


def feature_dropout_(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(feature := _feature(x))) is None:
        return plain(x, p, train)
    return x.mul_(_mask(feature, p, piece).div_(1 - p))


def alpha_dropout(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(x)) is None:
        return plain(x, p, train)
    noise, shift = _alpha(_mask(x, p, piece), p)
    return x * noise + shift


def alpha_dropout_(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(x)) is None:
        return plain(x, p, train)
    noise, shift = _alpha(_mask(x, p, piece), p)
    return x.mul_(noise).add_(shift)


def feature_alpha_dropout(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(feature := _feature(x))) is None:
        return plain(x, p, train)
    noise, shift = _alpha(_mask(feature, p, piece), p)
    return x * noise + shift


def feature_alpha_dropout_(draws: Draws, plain: Plain, x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if not _draws(x, p, train) or (piece := draws.place(feature := _feature(x))) is None:
        return plain(x, p, train)
    noise, shift = _alpha(_mask(feature, p, piece), p)
    return x.mul_(noise).add_(shift)


def _draws(x: torch.Tensor, p: float, train: bool) -> bool:
    """Whether torch draws at all, or raises."""
    return train and 0 < p < 1 and x.numel() > 0 and x.dim() > 0


def _feature(x: torch.Tensor) -> torch.Tensor:
    """An empty tensor of the mask's shape: a number for each sample and channel."""
    return x.new_empty((*x.shape[:2], *(1,) * (x.dim() - 2)))


@torch.no_grad()
def _mask(like: torch.Tensor, p: float, piece: Piece) -> torch.Tensor:
    """Own rows of the mask: 1 for what is kept."""
    whole = piece.blank(like)
    plain_bernoulli_(whole, 1 - p)
    return piece.of(whole).clone()


def _alpha(mask: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    a = 1 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    shift = mask.add(-1).mul_(ALPHA * a).add_(ALPHA * a * p)
    return mask.mul_(a), shift


def _fused(x: torch.Tensor, p: float, piece: Piece) -> torch.Tensor:
    """On a GPU one kernel draws and scales, in float32."""
    if (rows := philox.dropout_rows(x, p, piece)) is not None:
        return rows
    with torch.no_grad():
        _, whole = torch.native_dropout(piece.blank(x).fill_(1), p, True)
        mask = piece.of(whole).clone()
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (wide * mask * (1 / (1 - p))).to(x.dtype)
