"""A loss that reads an output's half-precision original gives the numbers of one that reads the float32 copy."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from staged import lone_group, staged
from torch import nn

from paceline.mods import catalog, precision
from paceline.mods.compile import compiled_where_large

WORDS = 11
Use = Callable[[torch.Tensor], torch.Tensor]
WHOLE: dict[str, Use] = {
    "view": lambda logits: logits.view(-1, WORDS),
    "flatten": lambda logits: logits.flatten(0, 1),
    "reshape": lambda logits: logits.reshape(-1, WORDS),
}


@pytest.fixture(autouse=True, scope="module")
def everything_is_large() -> Any:
    patch = pytest.MonkeyPatch()
    patch.setattr(precision, "is_large", lambda tensor: True)
    yield
    patch.undo()


class Talker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.inner, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids: torch.Tensor) -> Any:
        return {"logits": self.head(F.gelu(self.inner(self.word(ids)))), "ids": ids}


class Spied:
    """Notes the types that a loss reads, and compiles nothing."""

    def __init__(self) -> None:
        self.read: list[torch.dtype] = []

    def __call__(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def spied(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.read.append(input.dtype)
            return loss(input, *args, **kwargs)

        return spied


def learned(
    train: Callable[[torch.Tensor, torch.Tensor, Callable[..., Any]], torch.Tensor],
    *,
    short: bool,
    mods: tuple[str, ...] = ("precision=bf16", "compile"),
) -> tuple[Any, list[torch.Tensor], list[torch.dtype]]:
    """The loss and all gradients, and what the loss read."""
    spied = Spied()
    with staged(lone_group(), mods=mods) as stage:
        mod = catalog.load(catalog.parse(mods)[0])
        mod.on_stage(stage)
        if mod.scaler is not None:
            mod.scaler.scale = 64.0  # at the usual first one a sum over samples is infinite
        torch.manual_seed(3)
        model, ids = Talker(), torch.randint(WORDS, (4, 6))
        model.word.weight.data.normal_(0.0, 2.0)
        logits = model(ids)["logits"]
        assert logits.dtype is torch.float32
        loss = train(
            logits, ids.roll(-1, 1), compiled_where_large(F.cross_entropy, spied) if short else F.cross_entropy
        )
        loss.backward()
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return loss.detach(), found, spied.read


def same(one: Any, other: Any) -> bool:
    return torch.equal(one[0], other[0]) and all(map(torch.equal, one[1], other[1]))


@given(
    use=st.sampled_from(sorted(WHOLE)),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "label_smoothing": st.sampled_from([0.0, 0.1]),
            "reduction": st.sampled_from(["mean", "sum"]),
            "ignore_index": st.sampled_from([-100, 0, 3]),
            "weight": st.just(torch.linspace(0.5, 2.0, WORDS)),
        },
    ),
    precision=st.sampled_from(["bf16", "fp16"]),
)
def test_all_gradients_are_the_same_to_the_bit(use: str, asked: dict[str, Any], precision: str) -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        return loss(WHOLE[use](logits), targets.flatten(), **asked)

    mods = (f"precision={precision}", "compile")
    found = learned(train, short=True, mods=mods)
    assert same(found, learned(train, short=False, mods=mods))
    assert found[2] == [torch.bfloat16 if precision == "bf16" else torch.float16]


def test_an_output_that_is_used_twice_gets_both_gradients() -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        return loss(logits.view(-1, WORDS), targets.flatten()) + 0.1 * logits.square().mean()

    found, plain = learned(train, short=True), learned(train, short=False)
    assert found[2] == [torch.bfloat16]
    for one, other in zip(found[1], plain[1], strict=True):
        # Each part is rounded to bfloat16, and then their sum: not the sum alone.
        assert torch.allclose(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


def test_a_view_outlives_the_output() -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        rows = logits.view(-1, WORDS)
        del logits
        gc.collect()
        return loss(rows, targets.flatten())

    assert learned(train, short=True)[2] == [torch.bfloat16]


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, WORDS)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return -grads[0].view(4, 6, WORDS)


def hooked(tensor: torch.Tensor) -> torch.Tensor:
    tensor.register_hook(lambda grad: 2 * grad)
    return tensor


def kept(tensor: torch.Tensor) -> torch.Tensor:
    tensor.retain_grad()
    return tensor


OTHERS: dict[str, Use] = {
    "changed in place": lambda logits: logits.clamp_(max=0.5).view(-1, WORDS),
    "changed through a view": lambda logits: logits.view(-1, WORDS).mul_(0.5),
    "with a hook": lambda logits: hooked(logits).view(-1, WORDS),
    "a view with a hook": lambda logits: hooked(logits.view(-1, WORDS)),
    "a hook between views": lambda logits: hooked(logits.view(2, -1, WORDS)).view(-1, WORDS),
    "with its gradient kept": lambda logits: kept(logits).view(-1, WORDS),
    "a gradient of another way": Reversed.apply,
    "in another order": lambda logits: logits.transpose(0, 1).reshape(-1, WORDS),
    "another one": lambda logits: (2 * logits).view(-1, WORDS),
    "another shape": lambda logits: logits.view(24, WORDS, 1)[:, :, 0],
}


@pytest.mark.parametrize("use", OTHERS)
def test_what_is_not_the_output_as_it_was_is_read_as_it_is(use: str) -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        return loss(OTHERS[use](logits), targets.flatten())

    found = learned(train, short=True)
    assert same(found, learned(train, short=False))
    assert found[2] == [torch.float32]


def test_a_part_of_the_output_is_read_as_it_is() -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        return loss(logits[0], targets[0]) + loss(logits[1:].view(-1, WORDS), targets[1:].flatten())

    found = learned(train, short=True)
    assert same(found, learned(train, short=False))
    assert found[2] == [torch.float32] * 2


def test_a_loss_of_the_detached_output_trains_nothing() -> None:
    def train(logits: torch.Tensor, targets: torch.Tensor, loss: Callable[..., Any]) -> torch.Tensor:
        apart = logits.detach().requires_grad_()
        loss(apart.view(-1, WORDS), targets.flatten()).backward()
        assert apart.grad is not None
        return logits.sum()

    assert same(learned(train, short=True), learned(train, short=False))


def test_evaluation_reads_the_original_too() -> None:
    model, spied = nn.Linear(5, WORDS), Spied()
    loss = compiled_where_large(F.cross_entropy, spied)
    x, y = torch.randn(7, 5), torch.arange(7)
    with staged(lone_group(), mods=("precision=bf16", "compile")) as stage:
        catalog.load(catalog.parse(["precision=bf16"])[0]).on_stage(stage)
        with torch.no_grad():
            logits = model(x)
            assert torch.equal(loss(logits, y), F.cross_entropy(logits, y))
            assert torch.equal(loss(logits[2:], y[2:]), F.cross_entropy(logits[2:], y[2:]))
        with torch.inference_mode():
            logits = model(x)
            assert torch.equal(loss(logits, y), F.cross_entropy(logits, y))
    assert spied.read == [
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]  # an inference tensor does not know whether it was changed


@pytest.mark.parametrize(
    ("mods", "stays"),
    [
        (("precision=bf16", "compile"), True),
        (("precision=bf16", "compile=max-autotune-no-cudagraphs"), True),
        (("precision=bf16", "compile=reduce-overhead"), False),
        (("precision=bf16",), False),
    ],
)
def test_the_original_stays_as_long_as_the_output_if_somebody_reads_it(mods: tuple[str, ...], stays: bool) -> None:
    class Watched(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            narrow = super().forward(x)
            self.seen = weakref.ref(narrow)
            return narrow

    with staged(lone_group(), mods=mods) as stage:
        catalog.load(catalog.parse(mods)[0]).on_stage(stage)
        model = Watched(5, WORDS)
        logits = model(torch.randn(7, 5))
        assert (model.seen() is not None) == stays
        rows = logits.view(-1)
        del logits
        assert (model.seen() is not None) == stays
        del rows
        assert model.seen() is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_the_compiled_loss_keeps_nothing_as_large_as_the_copy() -> None:
    loss = compiled_where_large(F.cross_entropy)
    start = torch.randn(64, 4096).bfloat16()
    narrow, y = start.clone().requires_grad_(), torch.arange(64)
    wide = precision.widen(narrow * 1)
    size = {torch.float32: 0, torch.bfloat16: 0}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype in size:
            size[tensor.dtype] = max(size[tensor.dtype], tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = loss(wide, y)
    found.backward()
    exact = start.double().requires_grad_()
    F.cross_entropy(exact, y).backward()
    assert narrow.grad is not None
    assert exact.grad is not None
    assert float(found) == pytest.approx(float(F.cross_entropy(start.double(), y)), rel=1e-6)
    assert torch.allclose(narrow.grad.double(), exact.grad, rtol=2**-8, atol=1e-9)
    assert size[torch.bfloat16] == narrow.numel()
    assert size[torch.float32] < narrow.numel() / 100


def test_a_loss_that_is_called_by_its_name_while_it_is_compiled_is_the_plain_one() -> None:
    """As torch does under a mode that looks at its functions."""
    calls = []

    def plain(input: torch.Tensor, *args: Any) -> torch.Tensor:
        calls.append("plain")
        return loss(input, *args) if calls.count("plain") == 1 else input.sum()

    def compile(function: Any) -> Any:
        def compiled(*args: Any) -> Any:
            calls.append("compiled")
            return function(*args)

        return compiled

    loss = compiled_where_large(plain, compile)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "is_large", lambda input: True)
        loss(torch.ones(3))
        loss(torch.ones(3))
    assert calls == ["compiled", "plain", "plain", "compiled", "plain"]
