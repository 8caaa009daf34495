"""Functions of numpy's global random stream, for own rows of a draw of the whole batch.

Only draws with a size (`np.random.normal(0, 1, size=x.shape)`). Numbers drawn one at a time, from Python's `random` or
from a generator object, cannot be split: the proof finds that the streams end elsewhere, and the module runs whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.script.draws.rows import Draws, Shape

# The position of `size` among each function's arguments.
SIZED = {
    **dict.fromkeys(("random", "random_sample", "ranf", "sample", "standard_normal", "standard_exponential"), 0),
    **dict.fromkeys(("choice", "exponential", "geometric", "poisson", "rayleigh", "standard_gamma", "standard_t"), 1),
    **dict.fromkeys(("beta", "binomial", "gamma", "gumbel", "laplace", "logistic", "lognormal"), 2),
    **dict.fromkeys(("normal", "randint", "uniform"), 2),
}
BY_DIMENSIONS = ("rand", "randn")


def sized(position: int, draws: Draws, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """np.random.normal(0, 1, (2, 3)), np.random.random(size=4)."""
    named = "size" in kwargs or len(args) <= position
    size = kwargs.get("size") if named else args[position]
    if size is None:
        return plain(*args, **kwargs)

    def draw(shape: Shape) -> Any:
        if named:
            return plain(*args, **kwargs | {"size": shape})
        return plain(*args[:position], shape, *args[position + 1 :], **kwargs)

    return _own_rows(draws, tuple(size) if hasattr(size, "__len__") else (int(size),), draw)


def by_dimensions(draws: Draws, plain: Callable[..., Any], *shape: Any) -> Any:
    """np.random.rand(2, 3)."""
    return _own_rows(draws, shape, lambda asked: plain(*asked)) if shape else plain()


def _own_rows(draws: Draws, shape: Shape, draw: Callable[[Shape], Any]) -> Any:
    piece = draws.place(shape, numpy=True)
    if piece is None:
        return draw(shape)
    rows = slice(piece.start, piece.start + piece.size)
    return draw(piece.shape(shape))[(slice(None),) * piece.dim + (rows,)].copy()
