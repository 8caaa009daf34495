"""All random functions of torch and numpy that are patched, and what takes their place inside a sliced call.

Outside sliced calls and dry runs a patched function is the plain one, after one look at `Draws.on`. The patches are at
torch's bindings, not at the Python functions that call them, so F.dropout, nn.Dropout, F.gumbel_softmax and
torch.distributions stay as they are. A function that torch.compile traces is torch's own as well: what it makes of it,
`compiled` replaces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from paceline.script.draws import attention, compiled, dropout, functions, layers, numpy_functions
from paceline.script.draws.rows import Draws
from paceline.script.patches import all_of, patch
from paceline.torch_private import bindings, list_device_constructors, makes_graph, take_for_torchs_own

Substitute = Callable[..., Any]

FILLS = ("normal_", "uniform_", "exponential_", "geometric_", "cauchy_", "log_normal_", "random_", "bernoulli_")
DROPOUTS = tuple(
    name + end for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout") for end in ("", "_")
)
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
OF_TORCH: dict[str, Substitute] = {
    "rand": functions.create,
    "randn": functions.create,
    "randint": functions.create,
    "rand_like": functions.like,
    "randn_like": functions.like,
    "randint_like": functions.like,
    "normal": functions.normal,
    "bernoulli": functions.bernoulli,
    "multinomial": functions.multinomial,
    "poisson": functions.gathered,
    "binomial": functions.gathered,
    "_sample_dirichlet": functions.gathered,
    "_standard_gamma": functions.standard_gamma,
    "rrelu": functions.rrelu,
    "rrelu_": functions.rrelu_,
    **{name: getattr(dropout, name) for name in DROPOUTS},
    **dict.fromkeys(RECURRENT, layers.recurrent),
}
OF_TENSORS: dict[str, Substitute] = {
    **dict.fromkeys(FILLS, functions.fill),
    "bernoulli": functions.bernoulli,
    "multinomial": functions.multinomial,
}
TABLE: list[tuple[Any, str, Substitute]] = [
    *((torch, name, substitute) for name, substitute in OF_TORCH.items()),
    *((bindings, name, OF_TORCH[name]) for name in (*DROPOUTS, *RECURRENT)),
    *((torch.Tensor, name, substitute) for name, substitute in OF_TENSORS.items()),
    (F, "rrelu_", functions.rrelu_),
    (F, "scaled_dot_product_attention", attention.attention),
    *(
        (np.random, name, functools.partial(numpy_functions.sized, position))
        for name, position in numpy_functions.SIZED.items()
    ),
    *((np.random, name, numpy_functions.by_dimensions) for name in numpy_functions.BY_DIMENSIONS),
]


def find(draws: Draws) -> Callable[[], None]:
    """Installs the patches. Returns a function that removes them."""
    # torch.set_default_device knows functions by their identity, and lists them at its first use: before the patches.
    list_device_constructors()
    return all_of(
        [compiled.find(draws), *(_patch(owner, name, draws, substitute) for owner, name, substitute in TABLE)]
    )


def _patch(owner: Any, name: str, draws: Draws, substitute: Substitute) -> Callable[[], None]:
    plain = getattr(owner, name)

    @functools.wraps(plain, assigned=("__doc__",), updated=())
    def random(*args: Any, **kwargs: Any) -> Any:
        if not draws.on or torch.compiler.is_compiling() or not draws.mine or makes_graph():
            return plain(*args, **kwargs)
        # Under torch.set_default_device a method of a tensor comes back here by its name, from inside torch's own.
        draws.on = False
        try:
            number = draws.made
            return draws.settle(substitute(draws, plain, *args, **kwargs), number)
        finally:
            draws.on = True

    random.__name__ = random.__qualname__ = name
    random.__module__ = owner.__name__ if owner is not torch.Tensor else "torch"
    take_for_torchs_own(random, plain)
    return patch(owner, name, random)
