"""Random functions of torch, for own rows of a draw of the whole batch.

Each function takes torch's own one first, draws with it, and returns what it would have returned for own rows:

    fill      in place, by numbers:         normal_, uniform_, exponential_, …     draw a whole tensor, copy own rows
    like      in the layout of a tensor:    rand_like, randn_like, randint_like    the same
    create    by a size:                    rand, randn, randint                   the same
    embed     a distribution per element:   bernoulli, multinomial, normal         own rows among any others: their
              number of draws does not depend on values
    gathered  draws that depend on values:  poisson, binomial, _standard_gamma     all workers' rows, by one gather
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd import Function

from paceline.script.draws.rows import Draws, Piece
from paceline.torch_private import gamma_gradient

Plain = Callable[..., Any]
WHAT = "the parameters of a random draw"


def fill(draws: Draws, plain: Plain, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """x.normal_(…) and its siblings."""
    piece = draws.place(x, kwargs.get("generator"))
    if piece is None:
        return plain(x, *args, **kwargs)
    whole = piece.blank(x)
    # A number in a 0-dim tensor (the bounds of a uniform draw) is passed on: torch takes it as a number.
    args = tuple(_embed(piece, arg.expand(x.shape), 0.5) if _is_per_element(arg) else arg for arg in args)
    p = kwargs.get("p")
    if p is not None and _is_per_element(p):
        kwargs = kwargs | {"p": _embed(piece, p.expand(x.shape), 0.5)}
    plain(whole, *args, **kwargs)
    return x.copy_(piece.of(whole))


def _is_per_element(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and arg.dim() > 0


def like(draws: Draws, plain: Plain, x: torch.Tensor, *args: Any, requires_grad: bool = False, **kwargs: Any) -> Any:
    """torch.rand_like(x) and its siblings."""
    piece = draws.place(x, kwargs.get("generator"))
    if piece is None:
        return plain(x, *args, requires_grad=requires_grad, **kwargs)
    device = kwargs.pop("device", None) or x.device
    # On a GPU the model of the layout takes no memory. On a CPU it takes none either, being never written to, and a
    # tensor on "meta" would make torch import sympy.
    model = piece.blank(x, "meta" if x.is_cuda else None)
    whole = plain(model, *args, device=device, **kwargs)
    return piece.of(whole).clone().requires_grad_(requires_grad)


def create(draws: Draws, plain: Plain, *args: Any, **kwargs: Any) -> Any:
    """torch.rand(2, 3), torch.randn(size=(2, 3)), torch.randint(9, (2, 3)), torch.normal(0.0, 1.0, (2, 3))."""
    shape, rest = _size_of(args, kwargs)
    if shape is None or kwargs.get("out") is not None:
        return plain(*args, **kwargs)
    piece = draws.place(shape, kwargs.get("generator"))
    if piece is None:
        return plain(*args, **kwargs)
    named = {name: value for name, value in kwargs.items() if name not in ("size", "requires_grad")}
    whole = plain(*rest, size=piece.shape(shape), **named)
    return piece.of(whole).clone().requires_grad_(kwargs.get("requires_grad", False))


def _size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """The size that was asked for, and the arguments without it."""
    if "size" in kwargs:
        return tuple(kwargs["size"]), args
    if args and isinstance(args[-1], (tuple, list, torch.Size)):
        return tuple(args[-1]), args[:-1]
    if args and all(isinstance(arg, int) for arg in args):
        return args, ()
    return None, args


def bernoulli(draws: Draws, plain: Plain, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.bernoulli(x), torch.bernoulli(x, p), x.bernoulli(p)."""
    piece = draws.place(x, kwargs.get("generator")) if kwargs.get("out") is None else None
    if piece is None:
        return plain(x, *args, **kwargs)
    return piece.of(plain(_embed(piece, x, 0.5), *args, **kwargs)).clone()


def multinomial(draws: Draws, plain: Plain, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.multinomial(x, number of samples), x.multinomial(…)."""
    piece = draws.place(x, kwargs.get("generator")) if kwargs.get("out") is None else None
    if piece is None:
        return plain(x, *args, **kwargs)
    return piece.of(plain(_embed(piece, x, 1.0), *args, **kwargs)).clone()


def normal(draws: Draws, plain: Plain, mean: Any = 0.0, std: Any = 1.0, *args: Any, **kwargs: Any) -> Any:
    """torch.normal with tensors of means or deviations, or with a size."""
    given = [t for t in (mean, std) if isinstance(t, torch.Tensor)]
    if not given:
        size = args[0] if args else kwargs.pop("size")
        return create(draws, plain, mean, std, size=size, **kwargs)
    shape = np.broadcast_shapes(*(t.shape for t in given))  # torch's own imports sympy
    piece = draws.place(shape, kwargs.get("generator")) if kwargs.get("out") is None else None
    if piece is None:
        return plain(mean, std, *args, **kwargs)
    mean, std = (_embed(piece, t.expand(shape), 1.0) if isinstance(t, torch.Tensor) else t for t in (mean, std))
    return piece.of(plain(mean, std, *args, **kwargs)).clone()


def gathered(draws: Draws, plain: Plain, *args: Any, **kwargs: Any) -> Any:
    """torch.poisson, torch.binomial, torch._sample_dirichlet: their number of draws depends on all rows."""
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    piece = draws.place(given[0], kwargs.get("generator"))
    if piece is None:
        return plain(*args, **kwargs)
    args = tuple(_gather(piece, arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
    return piece.of(plain(*args, **kwargs)).clone()


def standard_gamma(draws: Draws, plain: Plain, x: torch.Tensor, **kwargs: Any) -> Any:
    return _Gamma.apply(x, draws, plain, kwargs)


class _Gamma(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, draws: Draws, plain: Plain, kwargs: dict[str, Any]) -> torch.Tensor:
        value = gathered(draws, plain, x.detach(), **kwargs)
        ctx.save_for_backward(x, value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * gamma_gradient(*ctx.saved_tensors), None, None, None


def rrelu(
    draws: Draws, plain: Plain, x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> torch.Tensor:
    """torch.rrelu: on a CPU it draws for negative elements only, so the signs of all workers' rows are needed."""
    return _rrelu(draws, plain, x, lower, upper, training, in_place=False)


def rrelu_(
    draws: Draws, plain: Plain, x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> torch.Tensor:
    return _rrelu(draws, plain, x, lower, upper, training, in_place=True)


def _rrelu(
    draws: Draws, plain: Plain, x: torch.Tensor, lower: float, upper: float, training: bool, *, in_place: bool
) -> torch.Tensor:
    piece = draws.place(x) if training else None
    if piece is None:
        return plain(x, lower, upper, training)
    with torch.no_grad():
        signs = _gather(piece, torch.where(x <= 0, -1.0, 1.0).to(x.dtype))
        slopes = torch.where(x <= 0, -piece.of(plain(signs, lower, upper, True)), torch.ones_like(x))
    return x.mul_(slopes) if in_place else x * slopes


def _embed(piece: Piece, x: torch.Tensor, other: float) -> torch.Tensor:
    """A whole tensor with own rows in their place, and `other` in all other rows."""
    whole = piece.blank(x).fill_(other)
    piece.of(whole).copy_(x.detach())
    return whole


def _gather(piece: Piece, x: torch.Tensor) -> torch.Tensor:
    """All workers' rows. Every worker calls it, and waits for all of them."""
    split = piece.split
    rows = split.group.gather_rows(x.detach().narrow(piece.dim, 0, split.mine), piece.dim, split.sizes, WHAT)
    return piece.blank(x).copy_(rows)
