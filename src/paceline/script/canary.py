"""The canary: does this torch still pass the places that Paceline patches, and compute there what Paceline computes?

A torch that bypasses a patch would not fail: it would print other numbers. The zygote therefore calls `look` once, in a
process of its own, before workers are forked. Three kinds of claims are tried, each on a few numbers:

    passes     a layer calls the function that is patched (nn.Dropout → torch.dropout, a loader → its fetcher)
    draws      own rows of a random function are bit for bit those of torch's own function on the whole batch
    computes   batch norm with given statistics; exchanging a tensor's content; private attributes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from torch.distributions import Distribution, Normal
from torch.nn.utils import rnn
from torch.utils.data import DataLoader

from paceline import torch_private as private
from paceline.script.draws import table
from paceline.script.draws.rows import Draws, rules_of
from paceline.script.patches import patch
from paceline.script.rows.crossings import Split
from paceline.script.rows.layout import Layout
from paceline.script.rows.spread_tensor import make_plain
from paceline.script.rows.tensor import Rows
from paceline.script.seams import hidden_group
from paceline.script.seams.batch_norm import norm_whole_batch

ROWS, WIDTH = 6, 4
# Patched places that a script's own line names: no code of torch lies between.
BY_NAME: set[tuple[Any, str]] = {
    *((torch, name) for name in ("compile", "save", "rand", "randn", "randint", "rand_like", "randn_like")),
    *((torch, name) for name in ("randint_like", *table.DROPOUTS, *table.RECURRENT)),
    (F, "rrelu_"),
    (torch.jit, "trace"),
    (torch.utils.checkpoint, "checkpoint"),
    (torch.optim.Optimizer, "__init__"),  # called by every optimizer; trying it would import torch._dynamo
    (torch.autograd, "grad"),
    (type(torch.autograd.Variable), "__call__"),
    *((owner, "vmap") for owner in (torch, torch.func)),
    (torch.autograd.Function, "apply"),
    *((torch.Tensor, name) for name in ("item", "__float__", "register_hook", "retain_grad", "retains_grad")),
    *(
        (torch.Tensor, name)
        for name in ("bernoulli", "multinomial", "geometric_", "log_normal_", "random_", "bernoulli_")
    ),
    *((owner, name) for owner in (dist, dist.distributed_c10d) for name in hidden_group.NAMES),
    *((DataLoader, name) for name in ("__iter__", "__len__", "check_worker_number_rationality")),
}


def look() -> list[str]:
    """What is not as Paceline needs it; nothing, if all is well. Called by one process, which ends afterwards: it
    changes torch's random stream."""
    with torch.device("cpu"):
        return [*_bypassed(), *_drawn_otherwise(), *_computed_otherwise()]


def _bypassed() -> Iterator[str]:
    for shown, owner, name, way in ways():
        hits: list[int] = []
        plain = getattr(owner, name)

        def counting(*args: Any, _hits: list[int] = hits, _plain: Any = plain, **kwargs: Any) -> Any:
            _hits.append(1)
            return _plain(*args, **kwargs)

        undo = patch(owner, name, counting)
        try:
            way()
        finally:
            undo()
        if not hits:
            yield f"{shown} does not call {_name_of(owner)}.{name}"


def ways() -> list[tuple[str, Any, str, Callable[[], Any]]]:
    """For each patched place that torch's own code reaches: what a script writes to reach it."""
    x, y, linear = torch.rand(ROWS, WIDTH), torch.arange(ROWS) % WIDTH, nn.Linear(WIDTH, WIDTH)
    spatial, sequence = x.view(ROWS, 2, 2, 1), x.view(2, 3, WIDTH)
    loader = DataLoader(torch.utils.data.TensorDataset(x), batch_size=2)
    vf, attention = private.bindings, nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
    one = torch.ones(ROWS)
    return [
        ("nn.Linear", nn.Module, "__call__", lambda: linear(x)),
        ("Tensor.backward", torch.autograd, "backward", lambda: linear(x).sum().backward()),
        ("a loader", private.LoaderIterator, "__next__", lambda: next(iter(loader))),
        ("a loader", private.LoaderIterator, "_next_index", lambda: next(iter(loader))),
        ("a loader", private.MapDatasetFetcher, "fetch", lambda: next(iter(loader))),
        ("nn.BatchNorm1d", F, "batch_norm", lambda: nn.BatchNorm1d(WIDTH)(x)),
        ("nn.CrossEntropyLoss", F, "cross_entropy", lambda: nn.CrossEntropyLoss()(x, y)),
        ("nn.NLLLoss", F, "nll_loss", lambda: nn.NLLLoss()(x, y)),
        ("nn.Dropout", vf, "dropout", lambda: nn.Dropout()(x)),
        ("nn.Dropout(inplace=True)", vf, "dropout_", lambda: nn.Dropout(inplace=True)(x * 1)),
        ("nn.Dropout2d", vf, "feature_dropout", lambda: nn.Dropout2d()(spatial)),
        ("nn.Dropout2d(inplace=True)", vf, "feature_dropout_", lambda: nn.Dropout2d(inplace=True)(spatial * 1)),
        ("nn.AlphaDropout", vf, "alpha_dropout", lambda: nn.AlphaDropout()(x)),
        ("F.alpha_dropout(inplace=True)", vf, "alpha_dropout_", lambda: F.alpha_dropout(x * 1, 0.5, True, True)),
        ("nn.FeatureAlphaDropout", vf, "feature_alpha_dropout", lambda: nn.FeatureAlphaDropout()(spatial)),
        (
            *("F.feature_alpha_dropout(inplace=True)", vf, "feature_alpha_dropout_"),
            lambda: F.feature_alpha_dropout(spatial * 1, 0.5, True, True),
        ),
        ("nn.LSTM", vf, "lstm", lambda: nn.LSTM(WIDTH, 2)(sequence)),
        ("nn.GRU", vf, "gru", lambda: nn.GRU(WIDTH, 2)(sequence)),
        ("nn.RNN", vf, "rnn_tanh", lambda: nn.RNN(WIDTH, 2)(sequence)),
        ("nn.RNN", vf, "rnn_relu", lambda: nn.RNN(WIDTH, 2, nonlinearity="relu")(sequence)),
        (
            *("nn.MultiheadAttention", F, "scaled_dot_product_attention"),
            lambda: attention(sequence, sequence, sequence, need_weights=False),
        ),
        ("F.one_hot", F, "one_hot", lambda: nn.functional.one_hot(torch.arange(3), 3)),
        ("Normal", Distribution, "__init__", lambda: Normal(x, 1.0)),
        ("Normal.log_prob", Distribution, "_validate_sample", lambda: Normal(x, 1.0).log_prob(x)),
        ("pack_sequence", rnn, "pack_padded_sequence", lambda: rnn.pack_sequence([x])),
        ("pad_packed_sequence", rnn, "pad_packed_sequence", lambda: rnn.pad_packed_sequence(rnn.pack_sequence([x]))),
        ("pad_packed_sequence", vf, "_pad_packed_sequence", lambda: rnn.pad_packed_sequence(rnn.pack_sequence([x]))),
        ("nn.RReLU", torch, "rrelu", lambda: nn.RReLU()(x)),
        ("nn.RReLU(inplace=True)", torch, "rrelu_", lambda: nn.RReLU(inplace=True)(x * 1)),
        ("F.gumbel_softmax", torch.Tensor, "exponential_", lambda: F.gumbel_softmax(x)),
        ("nn.init.uniform_", torch.Tensor, "uniform_", lambda: nn.init.uniform_(x * 1)),
        ("nn.init.normal_", torch.Tensor, "normal_", lambda: nn.init.normal_(x * 1)),
        ("distributions.Cauchy", torch.Tensor, "cauchy_", lambda: D.Cauchy(one, one).sample()),
        ("distributions.Normal", torch, "normal", lambda: D.Normal(one, one).sample()),
        ("distributions.Bernoulli", torch, "bernoulli", lambda: D.Bernoulli(one / 2).sample()),
        ("distributions.Categorical", torch, "multinomial", lambda: D.Categorical(x).sample()),
        ("distributions.Poisson", torch, "poisson", lambda: D.Poisson(one).sample()),
        ("distributions.Binomial", torch, "binomial", lambda: D.Binomial(2, one / 2).sample()),
        ("distributions.Gamma", torch, "_standard_gamma", lambda: D.Gamma(one, one).sample()),
        ("distributions.Dirichlet", torch, "_sample_dirichlet", lambda: D.Dirichlet(x + 1).sample()),
    ]


DRAWN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.dropout": lambda x: F.dropout(x, 0.3),
    "F.dropout(inplace=True)": lambda x: F.dropout(x * 1, 0.3, inplace=True),
    "F.dropout2d": lambda x: F.dropout2d(x.view(-1, 2, 2, 1), 0.3),
    "F.alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, True),
    "F.feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x.view(-1, 2, 2), 0.2, True),
    "torch.rand_like": lambda x: torch.rand_like(x),
    "torch.randn_like": lambda x: torch.randn_like(x),
    "torch.randint_like": lambda x: torch.randint_like(x, 9),
    "torch.rand": lambda x: torch.rand(len(x), 2),
    "torch.randn": lambda x: torch.randn(len(x), 2),
    "torch.randint": lambda x: torch.randint(9, (len(x), 2)),
    "torch.normal": lambda x: torch.normal(x, 0.1),
    "torch.bernoulli": lambda x: torch.bernoulli(x),
    "torch.multinomial": lambda x: torch.multinomial(x, 2),
    "Tensor.normal_": lambda x: torch.empty_like(x).normal_(),
    "Tensor.exponential_": lambda x: torch.empty_like(x).exponential_(),
    "F.scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(
        query := x.view(-1, 2, 2, 1), query, query, dropout_p=0.2
    ),
}


def _drawn_otherwise() -> Iterator[str]:
    x, draws = torch.rand(ROWS, WIDTH), Draws()
    split = _split(rank=1, world=2)
    network = nn.LSTM(WIDTH, 2, num_layers=2, dropout=0.4, batch_first=True)
    layered = {"nn.LSTM": lambda rows: network(rows.view(-1, 2, WIDTH // 2).repeat(1, 1, 2))[0]}
    undo = table.find(draws)
    try:
        for shown, function in (DRAWN | layered).items():
            with _from_start() as end:
                whole = function(x)
                after = end()
            with _from_start(), draws.rehearsal() as at:
                function(x)
            with _from_start(), draws.rehearsal() as part:
                function(x[split.start :])
            with _from_start() as end, draws.in_call(split, rules_of(part.drawn or (), at.drawn or (), split)):
                own = function(x[split.start :])
                moved = end()
            if not _same(own, whole[split.start :]) or not torch.equal(moved, after):
                yield f"{shown} draws other numbers than Paceline draws for the rows of a batch"
    finally:
        undo()


@contextmanager
def _from_start() -> Iterator[Callable[[], torch.Tensor]]:
    """Draws from a fixed state of the stream. Gives the function that tells the stream's state."""
    torch.manual_seed(1)
    with torch.no_grad():
        yield torch.get_rng_state


def _computed_otherwise() -> Iterator[str]:
    whole = _split(rank=0, world=1)
    x = torch.rand(ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.rand(WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(2))
    factors = torch.rand(ROWS, WIDTH, dtype=torch.float64)
    found = []
    for norm in (
        lambda mean, var: F.batch_norm(x, mean, var, weight, bias, True, 0.1, 1e-5),
        lambda mean, var: norm_whole_batch(x, mean, var, weight, bias, 0.1, 1e-5, whole),
    ):
        mean, variance = torch.zeros(WIDTH, dtype=torch.float64), torch.ones(WIDTH, dtype=torch.float64)
        y = norm(mean, variance)
        found.append([y, mean, variance, *torch.autograd.grad((y * factors).sum(), (x, weight, bias))])
    if not all(_same(ours, torchs) for torchs, ours in zip(*found, strict=True)):
        yield "batch norm computes other numbers than Paceline computes from the statistics of a batch"

    rows = Rows(local := torch.rand(ROWS, WIDTH), Layout(whole, 0))
    make_plain(rows)
    if type(rows) is not torch.Tensor or not torch.equal(rows, local):
        yield "the content of a tensor cannot be exchanged"

    leaf, module = torch.zeros(1, requires_grad=True), nn.BatchNorm1d(WIDTH)
    loader = DataLoader(torch.utils.data.TensorDataset(torch.rand(2, 1)), batch_size=2)
    for thing, names in (
        (leaf, private.OF_TENSORS),
        (module, private.OF_MODULES),
        (loader, private.OF_LOADERS),
        (iter(loader), private.OF_ITERATORS),
    ):
        for name in names:
            if not hasattr(thing, name):
                yield f"{type(thing).__name__} has no attribute {name}"


def _split(rank: int, world: int) -> Split:
    """A split for what sends nothing, or, with one worker, only to itself."""
    alone: Any = SimpleNamespace(
        rank=rank,
        world=world,
        crossed=0,
        all_reduce=lambda tensor, what: None,
        gather_vectors=lambda vector, what: vector.unsqueeze(0),
        gather_rows=lambda rows, dim, sizes, what: rows,
    )
    return Split.of(alone, ROWS)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Up to rounding: a layer may be computed in other steps. A number drawn otherwise differs far more."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def _name_of(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", getattr(owner, "__name__", owner))).removeprefix("torch.nn.")
