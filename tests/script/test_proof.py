"""The proof: a module's call in slices gives what the whole batch gives, or is refused. Never a wrong number.

Every case is called on one process and on workers, forward and backward, with arguments whose sizes may coincide.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from staged import staged
from torch import nn
from torch.nn import functional as F

from paceline.comm.group import Group
from paceline.errors import NotSplitError
from paceline.script import rng, tree
from paceline.script.proof import trial


def rows(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Head(nn.Module):
    """A layer of weights, and whatever `then` makes of its output."""

    def __init__(self, then: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.then = then

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.then(self.layer(x), *args, **kwargs)


class Masked(nn.Module):
    """Attention over the sequence with a mask [T, T] as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ x.transpose(1, 2) + mask
        return torch.softmax(scores, -1) @ self.value(x)


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, batch_first=batch_first)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.lstm(x, state)


class Named(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor
    note: str = "fine"


Classic = namedtuple("Classic", "a b")


@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    extra: Any = None


def cut_at_random(y: torch.Tensor) -> torch.Tensor:
    return y + torch.randn_like(y)


@dataclass(frozen=True)
class Case:
    """A call. `make` gives the module and `args` the arguments, anew at each call."""

    make: Callable[[], nn.Module]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict
    batch_dim: int = 0
    train: bool = True


def head(then: Callable[..., Any], *args: Any, batch: int = 4, **kwargs: Any) -> Case:
    return Case(lambda: Head(then), lambda: (rows(batch, 3), *fresh(args)), lambda: kwargs)


def fresh(args: tuple[Any, ...]) -> list[Any]:
    """Without the gradients of earlier calls."""
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]


STATE = lambda batch: (rows(2, batch, 4, seed=1), rows(2, batch, 4, seed=2))  # noqa: E731

RIGHT = {
    "the batch is second": Case(lambda: Recurrent(False), lambda: (rows(3, 4, 3),)),
    "the batch is second, and flattened": Case(
        lambda: Head(lambda y: (y.flatten(0, 1), y.transpose(0, 1).flatten(0, 1), y.mean(0))), lambda: (rows(1, 5, 3),)
    ),
    "an object of its own": head(lambda y: Opaque(y)),
    "rows": head(lambda y: y),
    "a batch of one": head(lambda y: y, batch=1),
    "fewer rows than workers": head(lambda y: y, batch=2),
    "no rows": head(lambda y: y, batch=0),
    "a tuple": head(lambda y: (y, y * 2)),
    "a list": head(lambda y: [y, [y * 2]]),
    "a dictionary": head(lambda y: {"logits": y, "aux": {"deep": y.sum(1)}}),
    "an ordered dictionary": head(lambda y: OrderedDict(b=y, a=y + 1)),
    "a named tuple": head(lambda y: Named(y, y.tanh())),
    "a classic named tuple": head(lambda y: Classic(y, y + 1)),
    "a dataclass": head(lambda y: Output(loss=y.mean(), logits=y)),
    "a dataclass with nothing in a field": head(lambda y: Output(loss=y.mean(), logits=y, extra=[None, "text"])),
    "a mean": head(lambda y: (y**2).mean()),
    "a mean of an uneven batch": head(lambda y: (y**2).mean(), batch=5),
    "a mean of fewer rows than workers": head(lambda y: (y**2).mean(), batch=2),
    "a mean over the rows": head(lambda y: y.mean(0), batch=5),
    "a sum": head(lambda y: (y**2).sum(), batch=5),
    "a sum over the rows": head(lambda y: y.sum(0), batch=5),
    "a mean beside rows": head(lambda y: (y.mean(), y)),
    "a float": head(lambda y: (y, float((y**2).mean().detach())), batch=5),
    "a count": head(lambda y: (y, int((y > 0).sum())), batch=5),
    "a constant": head(lambda y: (y, 7)),
    "a constant float": head(lambda y: (y, 0.5)),
    "a constant tensor": head(lambda y: (y, torch.arange(6.0))),
    "a text": head(lambda y: (y, "label")),
    "nothing": head(lambda y: (y, None)),
    "classes": head(lambda y: y.argmax(1), batch=5),
    "a yes or no a row": head(lambda y: (y, y[:, 0] > 0), batch=5),
    "counted classes": head(lambda y: (y, (y > 0).sum()), batch=5),
    "a parameter": Case(lambda: Parameter(), lambda: (rows(4, 3),)),
    "columns": head(lambda y: y.t(), batch=5),
    "columns as many as rows": head(lambda y: y.t(), batch=3),
    "rows in the middle": head(lambda y: y.unsqueeze(0).expand(2, -1, -1), batch=5),
    "as many rows as features": head(lambda y: y, batch=3),
    "two batches of rows": head(lambda y, z: y * z, rows(4, 3, seed=3)),
    "rows by keyword": head(lambda y, *, weight: y * weight, weight=rows(4, 1, seed=3)),
    "rows in a dictionary": Case(lambda: Head(lambda y: y), lambda: (), lambda: {"x": rows(5, 3)}),
    "an argument without a batch": head(lambda y, scale: y * scale, rows(3, seed=3), batch=5),
    "an argument without a batch of the batch's size": head(lambda y, scale: y * scale, rows(3, seed=3), batch=3),
    "an argument without a batch that needs a gradient": head(
        lambda y, scale: y * scale, rows(3, seed=3).requires_grad_(), batch=5
    ),
    "labels of the batch": head(
        lambda y, labels: nn.functional.cross_entropy(y, labels), torch.tensor([0, 1, 2, 0, 1]), batch=5
    ),
    "a mean over labels that are not ignored": head(
        lambda y, labels: nn.functional.cross_entropy(y, labels, ignore_index=-1), torch.tensor([0, 1, -1, 1])
    ),
    "flags, numbers and texts": head(
        lambda y, flag, number, text: y * number if flag and text == "go" else y, True, 3, "go"
    ),
    "a mask": Case(Masked, lambda: (rows(5, 3, 3), rows(3, 3, seed=4))),
    "a mask as large as the batch": Case(Masked, lambda: (rows(4, 4, 3), rows(4, 4, seed=4))),
    "a mask of fewer rows than workers": Case(Masked, lambda: (rows(2, 2, 3), rows(2, 2, seed=4))),
    "recurrent": Case(Recurrent, lambda: (rows(5, 3, 3),)),
    "recurrent with as many layers as rows": Case(Recurrent, lambda: (rows(2, 3, 3),)),
    "recurrent with a state": Case(Recurrent, lambda: (rows(5, 3, 3), STATE(5))),
    "recurrent with as many steps as rows": Case(Recurrent, lambda: (rows(3, 3, 3), STATE(3))),
    "sequence first": Case(lambda: Recurrent(False), lambda: (rows(3, 5, 3),), batch_dim=1),
    "sequence first with a state": Case(lambda: Recurrent(False), lambda: (rows(3, 5, 3), STATE(5)), batch_dim=1),
    "sequence first with as many steps as rows": Case(
        lambda: Recurrent(False), lambda: (rows(4, 4, 3), STATE(4)), batch_dim=1
    ),
    "images": Case(lambda: nn.Conv2d(3, 3, 3).double(), lambda: (rows(5, 3, 6, 6),)),
    "as many images as channels": Case(lambda: nn.Conv2d(3, 3, 3).double(), lambda: (rows(3, 3, 6, 6),)),
    "evaluation": Case(lambda: Head(lambda y: y), lambda: (rows(5, 3),), train=False),
    "an input that needs a gradient": Case(lambda: Head(lambda y: y), lambda: (rows(5, 3).requires_grad_(),)),
}


class Parameter(nn.Module):
    """Gives back one of its parameters beside its output (tied weights, a learned temperature)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x), self.temperature, self.temperature.exp()


class Centred(nn.Module):
    """Mixes samples, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y - y.mean(0)


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).reshape(4, 3)


class Opaque:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


REFUSED = {
    "samples are mixed": Case(Centred, lambda: (rows(4, 3),)),
    "samples are sorted": head(lambda y: y.sort(0).values),
    "a mean over pairs": head(lambda y: (y @ y.t()).logsumexp(1).mean()),
    "a maximum": head(lambda y: y.max()),
    "pairs": head(lambda y: y @ y.t()),
    "it runs on four rows only": Case(Fixed, lambda: (rows(4, 3),)),
    "rows of the first only": head(lambda y: y[:1]),
    "an order of rows": head(lambda y: y.sum(1).argsort()),
}


def called(case: Case) -> dict[str, Any]:
    """The output, and every gradient of a loss that looks at all of it."""
    torch.manual_seed(5)
    module = case.make().double()
    module.train(case.train)
    args, kwargs = case.args(), case.kwargs()
    output = module(*args, **kwargs)
    pieces = [leaf for leaf in tree.leaves(output) if isinstance(leaf, torch.Tensor)]
    losses = [(piece.double() ** 3).sum() for piece in pieces if piece.requires_grad]
    seen: dict[str, Any] = {f"output {i}": plain(leaf) for i, leaf in enumerate(tree.leaves(output))}
    seen["made of"] = str(tree.structure(output))
    if losses:
        sum(losses).backward()
        seen |= {name: plain(p.grad) for name, p in module.named_parameters()}
        given = [leaf for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        seen |= {f"argument {i}": plain(leaf.grad) for i, leaf in enumerate(given)}
    return seen


def plain(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is type(value), f"{name}: {found[name]!r} is not {value!r}"
        if isinstance(value, torch.Tensor | float):
            torch.testing.assert_close(
                found[name], value, rtol=1e-7, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}"
            )
        else:
            assert found[name] == value, name


def in_slices(group: Group, name: str) -> dict[str, Any]:
    case = RIGHT[name]
    with staged(group, batch_dim=case.batch_dim):
        return called(case)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", RIGHT)
def test_a_call_in_slices_gives_what_the_whole_batch_gives(pool: Any, name: str, world: int) -> None:
    expected = called(RIGHT[name])
    for found in pool(world).run(in_slices, name):
        same(found, expected)


def time_first(group: Group | None) -> tuple[list[torch.Tensor], Any]:
    """Steps first, with a mask of steps and a mask of samples; first with as many steps as samples."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0).double()
    found = []
    with nullcontext() if group is None else staged(group) as stage:
        for steps in (6, 5, 6):
            padding = torch.zeros(6, steps, dtype=torch.bool)
            padding[::2, -1] = True
            later = torch.ones(steps, steps).triu(1).bool()
            found.append(layer(rows(steps, 6, 4), later, padding).detach().clone())
        return found, None if stage is None else stage.views.refusal


@pytest.mark.parametrize("world", [2, 3])
def test_as_many_steps_as_samples_hide_no_batch(pool: Any, world: int) -> None:
    expected, _ = time_first(None)
    for found, refusal in pool(world).run(time_first):
        assert refusal is None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


RIGHT_OR_REFUSED = {
    # The state's first dimension, its layers, is as large as the batch.
    "recurrent with a state and as many layers as rows": Case(Recurrent, lambda: (rows(2, 3, 3), STATE(2))),
    "rows times steps": Case(lambda: Head(lambda y: y.flatten(0, 1)), lambda: (rows(4, 2, 3),)),
    "a variance": head(lambda y: y.var(), batch=5),
    "a list of rows": head(lambda y: list(y)),
    "the first row": head(lambda y: (y, y[0])),
    "the number of rows": head(lambda y: (y, len(y)), batch=5),
    "the number of rows as a tensor": head(lambda y: (y, torch.tensor(len(y))), batch=5),
    "the shape": head(lambda y: (y, y.shape)),
}


def right_or_refused(group: Group, name: str) -> dict[str, Any] | None:
    with staged(group):
        try:
            return called(RIGHT_OR_REFUSED[name])
        except NotSplitError:
            return None


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", RIGHT_OR_REFUSED)
def test_what_is_hard_to_tell_is_right_or_refused(pool: Any, name: str, world: int) -> None:
    expected = called(RIGHT_OR_REFUSED[name])
    for found in pool(world).run(right_or_refused, name):
        if found is not None:
            same(found, expected)


def refused(group: Group, name: str) -> tuple[str, dict[str, Any], list[str]]:
    """Why the call was not split, what it gave, and what a person read."""
    with staged(group) as stage:
        found = called(REFUSED[name])
        assert stage.views.refusal is not None
        return str(stage.views.refusal), found, stage.notices


class Limited(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.clamp(-0.5, 0.5)


class Normalised(Limited):
    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / grad.norm()


INDEX = torch.arange(28).reshape(7, 4) ** 2


class Cosine(nn.Module):
    """Whether a weight is too small for its norm is asked in its backward, and does not depend on the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows(4, 3, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.normalize(x), F.normalize(self.weight))


class InParts(nn.Module):
    """Writes its output part by part."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows(3, 5, seed=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.new_zeros(len(x), 5, 2)
        y[:, :3, 0] = x * self.weight[:, 0]
        y[:, 1::2, 1] = (x @ self.weight)[:, 2:4]
        return y


# Outputs are rows; whether gradients on slices add up.
GRADIENTS = {
    "of parts of an output": (Case(InParts, lambda: (rows(7, 3),)), True),
    "of a normalised weight": (Case(Cosine, lambda: (rows(7, 3),)), True),
    **{
        f"of bags, {mode}": (
            Case(lambda mode=mode: nn.EmbeddingBag(9, 3, mode=mode).double(), lambda: (INDEX % 9,)),
            True,
        )
        for mode in ("mean", "sum", "max")
    },
    "of a distribution that checks its parameters": (
        head(lambda y: torch.distributions.Normal(y, 1 + y**2).log_prob(y.detach()), batch=7),
        True,
    ),
    "limited one by one": (head(lambda y: Limited.apply(y), batch=7), True),
    "over the norm of all": (head(lambda y: Normalised.apply(y), batch=7), False),
    "by the number of rows": (head(lambda y: y + (y - y.detach()) / len(y), batch=7), False),
    "of every other row, little more": (
        head(lambda y: y * (1 + 0.008 * (torch.arange(len(y)) % 2)).bfloat16()[:, None], batch=7),
        False,
    ),
}


def judged_by_gradients(group: Group, name: str) -> tuple[bool, dict[str, Any]]:
    with staged(group) as stage:
        found = called(GRADIENTS[name][0])
        return stage.views.refusal is None, found


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_module_whose_gradients_do_not_add_up_is_not_sliced(pool: Any, name: str, world: int) -> None:
    case, adds_up = GRADIENTS[name]
    expected = called(case)
    for is_sliced, found in pool(world).run(judged_by_gradients, name):
        assert is_sliced == adds_up
        same(found, expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_cannot_be_computed_in_slices_runs_whole_on_every_worker(pool: Any, name: str) -> None:
    expected = called(REFUSED[name])
    answers = pool(2).run(refused, name)
    for message, found, notices in answers:
        assert "in slices" in message
        assert message == answers[0][0]
        assert any("Therefore " in notice and " whole" in notice for notice in notices)
        same(found, expected)


def test_the_refusal_names_the_module_the_argument_and_the_ways_out(pool: Any) -> None:
    message, *_ = pool(2).run(refused, "samples are mixed")[0]
    assert "module Centred" in message
    assert "argument [0]" in message
    assert "(4, 3)" in message
    assert "--mod view=slice" in message
    assert "--whole" not in message  # it is computed whole
    assert "--batch-dim" not in message  # both dimensions have been tried


def test_the_refusal_says_what_went_wrong_on_a_slice(pool: Any) -> None:
    assert "invalid for input of size" in pool(2).run(refused, "it runs on four rows only")[0][0]


class Centring(nn.Module):
    """Mixes samples between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.second(y - y.mean(0))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Centring()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).tanh()


class Grey(nn.Module):
    """Mixes samples behind a layer, which notes how many of them it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Conv2d(1, 2, 2), list[int]()
        self.layer.register_forward_hook(lambda module, args, output: self.seen.append(len(output)))

    def forward(self, x: Any) -> torch.Tensor:
        y = self.layer(torch.as_tensor(x))
        return y - y.mean(0)


def rows_seen(group: Group, made: Callable[[torch.Tensor], Any]) -> tuple[int, torch.Tensor]:
    with staged(group):
        module = Grey().double()
        output = module(made(rows(6, 1, 3, 3)))
    return module.seen[-1], output.detach()


def test_grey_images_are_no_single_sample(pool: Any) -> None:
    torch.manual_seed(0)
    expected = Grey().double()(rows(6, 1, 3, 3)).detach()
    for seen, found in pool(2).run(rows_seen, as_they_are):
        assert seen == 3
        torch.testing.assert_close(found, expected)


def test_modules_in_one_that_gets_numpy_arrays_are_split(pool: Any) -> None:
    torch.manual_seed(0)
    expected = Grey().double()(rows(6, 1, 3, 3)).detach()
    for seen, found in pool(2).run(rows_seen, torch.Tensor.numpy):
        assert seen == 3
        torch.testing.assert_close(found, expected)


def as_they_are(x: torch.Tensor) -> torch.Tensor:
    return x


def notices_of_nested(group: Group) -> list[str]:
    with staged(group) as stage:
        Around().double()(rows(6, 3))
        return list(stage.notices)


def test_one_cause_is_told_once_whatever_modules_are_around_it(pool: Any) -> None:
    for notices in pool(2).run(notices_of_nested):
        assert len(notices) == 1
        assert re.match(r"The module Centring \(Around\.\w+.*\) is not computed in slices", notices[0]), notices[0]


class Convolution(nn.Module):
    """Nodes get what their neighbours say."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, links[1], self.linear(x)[links[0]])


class Doubled(torch.Tensor):
    """A weight whose class decides what is computed with it, as quantised ones do."""

    @staticmethod
    def __new__(cls, plain: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, plain.shape, dtype=plain.dtype)  # type: ignore[attr-defined]
        made.plain = plain
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Doubled(args[0].plain)
        return func(*(a.plain * 2 if isinstance(a, Doubled) else a for a in args), **(kwargs or {}))


def notices_of_a_graph_and_a_weight(group: Group) -> list[str]:
    with staged(group) as stage:
        Convolution().double()(rows(6, 3), torch.tensor([[0, 1, 5, 2], [3, 4, 0, 1]]))
        layer = nn.Linear(3, 3).double()
        layer.weight = nn.Parameter(Doubled(torch.eye(3).double()), requires_grad=False)
        layer(rows(6, 3))
        return list(stage.notices)


def test_the_reason_is_the_graph_or_the_weight(pool: Any) -> None:
    for graph, weight in pool(2).run(notices_of_a_graph_and_a_weight):
        assert "it gets a graph, whose nodes depend on each other" in graph
        assert "one of its weights is a Doubled, which computes in a way of its own" in weight


class WithLoops(nn.Module):
    """Drops a graph's loops, adds one for each node, and divides by degrees, as GCNConv does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, links: torch.Tensor, graph: torch.Tensor) -> Any:
        links = links[:, links[0] != links[1]]
        row, col = torch.cat([links, torch.arange(len(x)).repeat(2, 1)], 1)
        scale = torch.zeros(len(x)).double().scatter_add_(0, col, torch.ones(len(col)).double()).rsqrt()
        messages = self.linear(x).index_select(-2, row) * (scale[row] * scale[col])[:, None]
        made = torch.zeros_like(x).index_add(0, col, messages)
        return torch.zeros(int(graph.max()) + 1, 3).double().index_add(0, graph, made), made.pow(2).mean()


def loops_made_anew(group: Group | None) -> Any:
    sizes = torch.tensor([6, 6, 6, 6, 6, 30])  # … of which five have as many nodes as six times their number
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(2 * sizes)
    generator = torch.Generator().manual_seed(1)
    links = torch.cat([torch.randint(0, int(n), (2, 2 * int(n)), generator=generator) for n in sizes], 1) + starts
    given = rows(60, 3), links, torch.arange(6).repeat_interleave(sizes)
    torch.manual_seed(0)
    with nullcontext() if group is None else staged(group) as stage:
        found = [leaf.detach().clone() for leaf in WithLoops().double()(*given)]
        return found, None if stage is None else stage.views.refusal


def test_a_graph_whose_loops_are_made_anew_is_cut_between_graphs(pool: Any) -> None:
    expected, _ = loops_made_anew(None)
    for found, refusal in pool(3).run(loops_made_anew):
        assert refusal is None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class OfTypes(nn.Module):
    """Sends messages from nodes of one type to those of another, and pools both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: dict[str, Any], links: dict[tuple[str, str], Any], graph: dict[str, Any]) -> Any:
        source, target = links["a", "b"]
        messages = self.linear(x["a"])[source]
        made = x["b"].index_add(0, target, messages)
        many = int(graph["a"].max()) + 1
        return torch.zeros(many, 3).double().index_add(0, graph["b"], made), messages


def types_of_nodes(group: Group | None) -> Any:
    sizes = {"a": torch.tensor([2, 3, 1, 4, 2, 3, 5, 2]), "b": torch.tensor([3, 1, 2, 2, 5, 1, 2, 4])}
    many = torch.tensor([0, 3, 5, 2, 4, 7, 1, 3])  # … edges
    generator = torch.Generator().manual_seed(1)
    links = torch.cat(
        [
            torch.stack([torch.randint(0, int(n), (int(m),), generator=generator) + start for n, start in ends])
            for m, *ends in zip(many, *(zip(n, n.cumsum(0) - n, strict=True) for n in sizes.values()), strict=True)
        ],
        1,
    )
    x = {kind: rows(int(n.sum()), 3) for kind, n in sizes.items()}
    graph = {kind: torch.arange(8).repeat_interleave(n) for kind, n in sizes.items()}
    torch.manual_seed(0)
    with nullcontext() if group is None else staged(group) as stage:
        found = [leaf.detach().clone() for leaf in OfTypes().double()(x, {("a", "b"): links}, graph)]
        return found, None if stage is None else stage.views.refusal


def test_graphs_with_types_of_nodes_are_cut_between_graphs(pool: Any) -> None:
    expected, _ = types_of_nodes(None)
    for found, refusal in pool(3).run(types_of_nodes):
        assert refusal is None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Thresholds(nn.Module):
    """A flag of numbers that a batch norm has made, as spiking neurons take it; torch tells of itself at the first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.calls = nn.BatchNorm1d(3), itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if next(self.calls) == 0 or not torch.is_grad_enabled():
            logging.getLogger("torch.tells").warning("of %s rows", len(x))
        shown = self.norm(x)
        return shown * (shown > 0.1).to(shown)


def thresholds(group: Group | None) -> Any:
    with nullcontext() if group is None else staged(group) as stage:
        module = Thresholds().double()
        found = [module(rows(12, 3) * step).detach().clone() for step in range(1, 4)]
        return found, None if stage is None else stage.views.refusal


def test_flags_of_a_batch_norm_are_split_and_lines_of_torch_are_none_of_the_modules(pool: Any) -> None:
    expected, _ = thresholds(None)
    for found, refusal in pool(3).run(thresholds):
        assert refusal is None
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


# -- the same module, later --------------------------------------------------------------------------------------------


def many_batches(group: Group | None, shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """A masked model on batches of (rows, steps): a plan that fits one may not fit the next."""
    torch.manual_seed(0)
    module = Masked().double()
    return [module(rows(batch, steps, 3), rows(steps, steps, seed=7)).detach() for batch, steps in shapes]


def many_batches_in_slices(group: Group, shapes: list[tuple[int, int]]) -> list[torch.Tensor]:
    with staged(group):
        return many_batches(group, shapes)


@pytest.mark.parametrize(
    "shapes",
    [[(5, 3), (4, 4), (5, 3)], [(4, 4), (5, 4), (3, 4), (4, 4)], [(4, 2), (1, 2), (2, 2), (4, 2)]],
    ids=["coincides later", "coincides at first", "gets small"],
)
def test_a_later_batch_of_other_sizes(pool: Any, shapes: list[tuple[int, int]]) -> None:
    expected = many_batches(None, shapes)
    for found in pool(3).run(many_batches_in_slices, shapes):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


# -- random outputs ----------------------------------------------------------------------------------------------------


class Sampled(nn.Module):
    """A latent that is drawn at each call, in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Any:
        mean = self.mean(x)
        z = mean + torch.randn_like(mean)
        return z, mean, (z**2).mean()


def sampled(group: Group | None, batch: int) -> Any:
    with staged(group) if group is not None else nullcontext():
        torch.manual_seed(0)
        module = Sampled().double()
        z, mean, value = module(rows(batch, 3))
        value.backward()
        return plain(z), plain(mean), plain(value), plain(module.mean.weight.grad)


@pytest.mark.parametrize("batch", [5, 2, 1])
def test_random_outputs_are_those_of_one_process(pool: Any, batch: int) -> None:
    expected = sampled(None, batch)
    for found in pool(3).run(sampled, batch):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


class Unsplit(nn.Module):
    """Draws in a way that no slice can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.randperm(len(x))  # drawn, and not looked at
        return self.layer(x)


def unsplit(group: Group) -> str:
    with staged(group) as stage:
        Unsplit()(rows(6, 3).float())
        return str(stage.views.refusal)


def test_a_stream_that_ends_elsewhere_is_a_refusal(pool: Any) -> None:
    assert "draws random numbers for its rows in a way that cannot be split" in pool(2).run(unsplit)[0]


# -- nothing of the script's is changed --------------------------------------------------------------------------------


class Stateful(nn.Module):
    """Counts, remembers, draws and talks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))
        self.history: list[int] = []
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.history = [*self.history, x.shape[0]]
        self.calls += 1
        self.seen = self.seen + 1
        print("forward", random.random(), np.random.rand())
        return self.dropout(self.layer(x))


def disturbed(group: Group) -> dict[str, Any]:
    from contextlib import redirect_stdout
    from io import StringIO

    with staged(group), redirect_stdout(StringIO()) as printed:
        streams_before = None
        module = Stateful()
        module.dropout.eval()
        random.seed(0)
        np.random.seed(0)
        streams_before = rng.snapshot()
        module(rows(4, 3).float())
        return {
            "count": module.count,
            "history": module.history,
            "calls": int(module.calls),
            "seen": module.seen.tolist(),
            "training": [m.training for m in module.modules()],
            "grads": [p.grad for p in module.parameters()],
            "printed": printed.getvalue().count("forward"),
            "torch drew": not torch.equal(streams_before[0][0], torch.get_rng_state()),
        }


def test_the_proof_leaves_no_trace(pool: Any) -> None:
    for found in pool(2).run(disturbed):
        assert found == {
            "count": 1,
            "history": [4],  # two rows on each worker
            "calls": 1,
            "seen": [1.0, 1.0, 1.0],
            "training": [True, True, False],
            "grads": [None, None],
            "printed": 1,
            "torch drew": False,
        }


def spied(x: torch.Tensor) -> list[int]:
    """The numbers of rows of all calls so far, kept where the proof does not look."""
    os.environ["PACELINE_TEST_CALLS"] = f"{os.environ.get('PACELINE_TEST_CALLS', '')} {len(x)}"
    return [int(rows) for rows in os.environ["PACELINE_TEST_CALLS"].split()]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spied(x)
        return self.layer(x)


def times_called(group: Group) -> list[int]:
    with staged(group):
        module, seen, one = Counting(), [], rows(1, 3)
        begun = len(spied(one))
        for batch in (4, 4, 6, 2):
            module(rows(batch, 3).float())
            seen.append(len(spied(one)) - begun - 1 - len(seen))
        module.eval()
        module(rows(4, 3).float())
        return [*seen, len(spied(one)) - begun - 1 - len(seen)]


def test_it_is_made_once_for_each_kind_of_call(pool: Any) -> None:
    for first, second, third, fourth, evaluated in pool(2).run(times_called):
        assert first > 1
        assert second - first == 1
        assert third - second == 4, "on a new number of rows, the operations on all rows are compared"
        assert fourth - third > 1, "slices of one row"
        assert evaluated - fourth > 1, "evaluation is another kind of call"


class Apart(nn.Module):
    """Mixes samples, or not, by what the module holds."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(3, 3), what
        with torch.no_grad():
            self.layer.bias[0] = what if isinstance(what, float) else 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spied(x)
        y = self.layer(x)
        mixes = self.what() if callable(self.what) else bool(self.layer.bias[0] > 0)
        return y - y.mean(0) if mixes else y


def closing_over(answer: bool) -> Callable[[], bool]:
    return lambda: answer


def times_called_alike(group: Group | None) -> tuple[list[int], list[torch.Tensor]]:
    """Of modules that look the same: how often each is called, and what they give."""
    with nullcontext() if group is None else staged(group):
        torch.manual_seed(0)
        pairs = [Counting(), Counting(), Apart(closing_over(False)), Apart(closing_over(True)), Apart(-1.0), Apart(1.0)]
        times, outputs = [], []
        for module in pairs:
            begun = len(spied(rows(1, 3)))
            outputs.append(module(rows(6, 3).float()).detach().clone())
            times.append(len(spied(rows(1, 3))) - begun - 1)
        return times, outputs


def test_modules_that_are_alike_are_proven_once(pool: Any) -> None:
    _, expected = times_called_alike(None)
    for times, outputs in pool(2).run(times_called_alike):
        assert times[0] > 1
        assert times[1] == 1
        assert min(times[2:]) > 1, "a function that closes over variables, and weights that are read, may differ"
        same(dict(enumerate(outputs)), dict(enumerate(expected)))


class Mixing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad - grad.mean(0)


class MixesInBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(Mixing.apply(x))


def with_and_without_gradient(group: Group | None) -> dict[str, Any]:
    with nullcontext() if group is None else staged(group):
        torch.manual_seed(0)
        encoder, head = nn.Linear(3, 3).double(), MixesInBackward().double()
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
        head(rows(7, 3)).square().sum().backward()  # the Function is not walked back
        head(encoder(rows(7, 3, seed=1))).square().sum().backward()
        optimizer.step()
        return {name: p.detach().clone() for name, p in encoder.named_parameters()}


def test_a_call_whose_input_needs_a_gradient_is_another_kind_of_call(pool: Any) -> None:
    expected = with_and_without_gradient(None)
    for found in pool(2).run(with_and_without_gradient):
        same(found, expected)


def library_of(group: Group) -> str:
    with staged(group, gather_below=0):
        return type(nn.Linear(3, 3)(rows(7, 3).float())).__module__


def test_libraries_take_sharded_outputs_for_tensors_of_torch(pool: Any) -> None:
    assert pool(2).run(library_of) == ["torch", "torch"]


# -- lengths that change -----------------------------------------------------------------------------------------------


class Unrolled(nn.Module):
    """A loop over time: other operations for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spied(x)
        state = x.new_zeros(len(x), 3)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class OddLength(Head):
    """Mixes samples where a length is odd."""

    def __init__(self) -> None:
        super().__init__(lambda y: (spied(y), y - y.mean(0) if y.shape[1] % 2 else y)[1])


class ShownRows(Head):
    """Which rows count depends on a length. Of the first one all do."""

    def __init__(self) -> None:
        super().__init__(lambda y: (spied(y), y * (torch.arange(len(y)) < 12 - y.shape[1])[:, None, None])[1])


LENGTHS = (4, 4, 4, 5, 4, 6, 5, 6)


def of_lengths(group: Group | None, make: type[nn.Module]) -> tuple[list[torch.Tensor], int]:
    """What the calls give, and the rows of the last one."""
    with staged(group) if group is not None else nullcontext():
        torch.manual_seed(3)
        module, found = make().double(), []
        for number, length in enumerate(LENGTHS):
            y = module(rows(8, length, 3, seed=number))
            (y**2).sum().backward()
            found.append(plain(y))
        seen = spied(y)
        return [*found, *(plain(p.grad) for p in module.parameters())], seen[-2]


@pytest.mark.parametrize(("make", "own"), [(Unrolled, 4), (OddLength, 4), (ShownRows, 8)])
def test_operations_that_depend_on_a_length_are_proven_for_each(pool: Any, make: type[nn.Module], own: int) -> None:
    expected, _ = of_lengths(None, make)
    for found, last in pool(2).run(of_lengths, make):
        assert last == own, "rows that a worker computes"
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


# -- modules that cannot be tried --------------------------------------------------------------------------------------


class TrainingOnly(nn.Module):
    """As detection models: in evaluation it wants other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        if not self.training:
            raise RuntimeError("evaluation wants images only")
        y = self.layer(x)
        return {"loss": (y**2).mean(), "rows": y}


def training_only(group: Group | None) -> Any:
    torch.manual_seed(0)
    module = TrainingOnly()
    out = module(rows(5, 3).float())
    (out["loss"] + out["rows"].sum()).backward()
    return plain(out["loss"]), plain(out["rows"]), plain(module.layer.weight.grad)


def training_only_in_slices(group: Group) -> Any:
    with staged(group):
        return training_only(group)


def test_a_module_that_runs_in_training_mode_only_is_judged_by_shapes(pool: Any) -> None:
    expected = training_only(None)
    for found in pool(2).run(training_only_in_slices):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


def whole_by_name(group: Group, whole: str) -> torch.Tensor:
    with staged(group, whole=(whole,)):
        torch.manual_seed(5)
        module = Centred().double()
        loss = (module(rows(4, 3)) ** 2).sum()
        loss.backward()
        return plain(module.layer.weight.grad)


def test_a_module_named_with_whole_is_computed_by_everybody(pool: Any) -> None:
    torch.manual_seed(5)
    module = Centred().double()
    (module(rows(4, 3)) ** 2).sum().backward()
    for found in pool(2).run(whole_by_name, "Centred"):
        torch.testing.assert_close(found, module.layer.weight.grad)


def mixed_in_evaluation(group: Group) -> tuple[torch.Tensor, list[str]]:
    with staged(group) as stage, torch.no_grad():
        torch.manual_seed(5)
        return Centred().double().eval()(rows(4, 3)), stage.notices  # type: ignore[attr-defined]


def test_an_evaluation_that_mixes_samples_is_computed_whole_by_everybody(pool: Any) -> None:
    torch.manual_seed(5)
    expected = Centred().double()(rows(4, 3)).detach()
    for found, notices in pool(2).run(mixed_in_evaluation):
        torch.testing.assert_close(found, expected)
        assert any("Centred" in notice for notice in notices)


def test_autocast_keeps_no_cast_of_weights_that_are_others_for_a_while() -> None:
    """It keeps the casts of a region's weights, by the parameter, whatever lies in it."""
    layer, x = nn.Linear(4, 4), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        before = layer(x)
        with trial.alone(layer) as (copied, *_):
            copied.weight.data = torch.randn(4, 4)
            meanwhile = copied(x)
        after = layer(x)
    assert not torch.equal(meanwhile, before)
    assert torch.equal(after, before)
    assert after.requires_grad
