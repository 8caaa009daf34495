"""Mesh: logits of a split vocabulary stay split, and losses over them are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from staged import staged
from test_mesh import SmallGPT, check, compare, saved
from torch import nn

from paceline.comm.group import Group
from paceline.strategies import catalog
from paceline.strategies.mesh.split_output import SplitOutput

WORDS = 10
STRATEGY = "mesh(data=1,model=2)"
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def weights() -> torch.Tensor:
    return torch.linspace(0.5, 2.0, WORDS, dtype=torch.float64)


def likely(targets: torch.Tensor) -> torch.Tensor:
    return F.one_hot(targets, WORDS).double() * 0.8 + 0.2 / WORDS


def flat(loss: Callable[..., torch.Tensor]) -> Loss:
    return lambda logits, y: loss(logits.view(-1, WORDS), y.flatten())


def in_place(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A change in place is seen through a view that was made before it."""
    view = logits.view(-1, WORDS)
    logits[:, 0] = 0.5
    return F.cross_entropy(view, y.flatten())


def measured_first(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        accuracy = (logits.argmax(-1) == y).double().mean()
        top = logits.topk(3).values.sum()
    return flat(F.cross_entropy)(logits, y) * (1 + accuracy + 0.01 * top)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


LOSSES: dict[str, Loss] = {
    "mean": flat(F.cross_entropy),
    "ignored": flat(lambda x, y: F.cross_entropy(x, y, ignore_index=3)),
    "weights": flat(lambda x, y: F.cross_entropy(x, y, weights(), ignore_index=3)),
    "smoothing": flat(lambda x, y: F.cross_entropy(x, y, ignore_index=2, label_smoothing=0.2)),
    "smoothing, weights": flat(lambda x, y: F.cross_entropy(x, y, weights(), ignore_index=2, label_smoothing=0.2)),
    "sum": flat(lambda x, y: F.cross_entropy(x, y, reduction="sum")),
    "none": flat(lambda x, y: F.cross_entropy(x, y, ignore_index=2, reduction="none").square().sum()),
    "probabilities": flat(lambda x, y: F.cross_entropy(x, likely(y))),
    "probabilities, weights": flat(lambda x, y: F.cross_entropy(x, likely(y), weights(), label_smoothing=0.1)),
    "classes second": lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
    "shifted": lambda x, y: F.cross_entropy(x[:, :-1, :].reshape(-1, WORDS) / 2.0, y[:, 1:].flatten()),
    "module": flat(nn.CrossEntropyLoss(label_smoothing=0.1)),
    "log_softmax": flat(lambda x, y: F.nll_loss(F.log_softmax(x, -1), y, weights(), ignore_index=3)),
    "softmax": lambda x, y: x.log_softmax(-1).exp().square().sum() + x.softmax(-1).std(),
    "the script's own function": lambda x, y: F.cross_entropy(Doubled.apply(x).view(-1, WORDS), y.flatten()),
    "in place": in_place,
    "measured first": measured_first,
}


def train(name: str, tied: bool = False, inside: bool = False) -> Any:
    torch.manual_seed(1)
    model = WithLoss(name) if inside else SmallGPT(tied=tied, fused=False)
    model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, seen = torch.randint(0, WORDS, (6, 6)), list[Any]()
    for _ in range(2):
        optimizer.zero_grad()
        given = (ids[:, :-1], ids[:, 1:])
        loss = model(*given) if inside else LOSSES[name](model(given[0]), given[1])
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return [seen, type(loss.grad_fn).__name__, saved(model.state_dict())]


class WithLoss(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.model, self.name = SmallGPT(tied=True, fused=True), name

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return LOSSES[self.name](self.model(ids), targets)


def on_mesh(group: Group, strategy: str, script: Callable[..., Any], *args: Any) -> Any:
    with staged(group, strategy=catalog.load(strategy), gather_below=0):
        return script(*args)


def check_split(pools: Pools, script: Callable[..., Any], *args: Any, workers: int = 2) -> None:
    """On two workers of the axis model, and `workers` in all."""
    torch.manual_seed(0)
    expected = script(*args)
    for found in pools(workers, "mesh").run(on_mesh, f"mesh(data={workers // 2},model=2)", script, *args):
        compare(found, expected)


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_split_logits_are_those_of_one_process(pool: Pools, loss: str) -> None:
    check_split(pool, train, loss)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_split_logits_are_those_of_one_process_on_two_axes(pool: Pools, loss: str) -> None:
    check_split(pool, train, loss, workers=4)


@pytest.mark.parametrize("loss", ["mean", "smoothing, weights"])
def test_a_loss_inside_the_model_is_computed_in_parts_too(pool: Pools, loss: str) -> None:
    check(pool, STRATEGY, train, loss, True, True)


def slopes() -> Any:
    """A penalty on gradients: the loss has a gradient of its gradient."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"word": nn.Embedding(WORDS, 4), "head": nn.Linear(4, WORDS)}).double()
    model.forward = lambda ids: model["head"](model["word"](ids).tanh())
    y = torch.tensor([1, 7, 3])
    loss = F.cross_entropy(model(torch.tensor([0, 4, 9])), y, label_smoothing=0.1)
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(slope.square().sum() for slope in found)).backward()
    return [p.grad.sum().item() for p in model.parameters()] + [p.grad[-1].tolist() for p in model.parameters()]


def test_losses_of_split_logits_have_gradients_of_gradients(pool: Pools) -> None:
    check_split(pool, slopes)


@pytest.mark.parametrize("data", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_logits_are_never_gathered_for_a_loss(pool: Pools, data: int) -> None:
    for kind, shape, gathered in pool(2 * data, "mesh").run(messages, f"mesh(data={data},model=2)"):
        assert kind == "SplitOutput"
        assert shape == (6 // data, 5, WORDS // 2)
        assert gathered <= 6 * 5  # numbers a worker sends at once: one for each row


def messages(group: Group, strategy: str) -> Any:
    with staged(group, strategy=catalog.load(strategy), gather_below=0):
        model = SmallGPT(tied=True, fused=False)
        ids = torch.randint(0, WORDS, (6, 6))
        sizes, plain = [], Group.gather_rows

        def gather_rows(self: Group, rows: torch.Tensor, *rest: Any) -> Any:
            sizes.append(rows.numel() if rows.is_floating_point() else 0)
            return plain(self, rows, *rest)

        logits: Any = model(ids[:, :-1])
        Group.gather_rows = gather_rows  # type: ignore[method-assign]
        try:
            own = logits if isinstance(logits, SplitOutput) else logits.local  # of the rows on this worker
            kind, shape = type(own).__name__, tuple(own.local.to_local().shape)
            (logits.argmax(-1) == ids[:, 1:]).sum().item()
            F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        finally:
            Group.gather_rows = plain  # type: ignore[method-assign]
        return kind, shape, max(sizes)


def test_a_target_that_is_no_class_is_refused_as_in_one_process(pool: Pools) -> None:
    assert pool(2, "mesh").run(on_mesh, STRATEGY, outside) == ["Target 10 is out of bounds."] * 2


def outside() -> str:
    logits = SmallGPT(tied=True, fused=False)(torch.zeros(1, 3, dtype=torch.long))
    try:
        F.cross_entropy(logits[0], torch.tensor([0, 10, 1]))
    except IndexError as error:
        return str(error)
    return ""
