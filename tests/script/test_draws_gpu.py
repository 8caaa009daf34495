"""Random draws of own rows on a GPU: dropout by Philox counters, and by drawing the whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.script.draws import philox
from paceline.script.draws.rows import Draws, rules_of
from paceline.script.rows.crossings import Split

pytestmark = pytest.mark.gpu

SHAPES = [(12, 7, 8), (7, 3, 5), (256, 256, 384), (9, 1)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def in_slices(draws: Draws, draw: Any, x: torch.Tensor, world: int = 3) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """All workers' rows, and what each stream gives next."""
    torch.manual_seed(5)
    with draws.rehearsal() as at:
        draw(x)
    pieces, then = [], []
    for rank in range(world):
        split = Split.of(SimpleNamespace(rank=rank, world=world), len(x))  # type: ignore[arg-type]
        with draws.rehearsal() as own:
            draw(x.narrow(0, split.start, split.mine).clone())
        torch.manual_seed(5)
        with draws.in_call(split, rules_of(own.drawn or (), at.drawn or (), split)):
            pieces.append(draw(x.narrow(0, split.start, split.mine).clone()))
        then.append(torch.rand(3, device="cuda"))
    return torch.cat(pieces), then


def check(draws: Draws, draw: Any, x: torch.Tensor) -> None:
    torch.manual_seed(5)
    whole, after = draw(x), torch.rand(3, device="cuda")
    found, then = in_slices(draws, draw, x)
    assert torch.equal(found, whole)
    assert all(torch.equal(next_, after) for next_ in then)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dropout_is_that_of_one_process(draws: Draws, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    check(draws, lambda x: F.dropout(x, 0.1), torch.randn(shape, device="cuda").to(dtype))


def test_dropout_of_more_elements_than_32_bits_count(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "NARROW", 0)
    check(draws, lambda x: F.dropout(x, 0.1), torch.randn(256, 256, 384, device="cuda"))


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dropout_by_drawing_the_whole(
    draws: Draws, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(philox, "dropout_rows", lambda x, p, piece: None)
    check(draws, lambda x: F.dropout(x, 0.1), torch.randn(shape, device="cuda").to(dtype))


def test_the_kernel_is_used_where_it_can_be(draws: Draws, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    used: list[bool] = []
    plain = philox.dropout_rows

    def noticing(x: torch.Tensor, p: float, piece: Any) -> Any:
        rows = plain(x, p, piece)
        used.append(rows is not None)
        return rows

    monkeypatch.setattr(philox, "dropout_rows", noticing)
    in_slices(draws, lambda x: F.dropout(x, 0.1), torch.randn(12, 7, 8, device="cuda"))
    assert used == [True] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradient_of_dropout(draws: Draws, dtype: torch.dtype) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        F.dropout(x, 0.3).square().sum().backward()
        assert x.grad is not None
        return x.grad

    check(draws, gradient, torch.randn(12, 7, 8, device="cuda").to(dtype))


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand_like(x),
        lambda x: torch.randn_like(x),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.empty_like(x).normal_(),
        lambda x: torch.rand(len(x), 3, device="cuda"),
        lambda x: F.dropout(x.clone(), 0.3, inplace=True),
        lambda x: F.dropout2d(x.unsqueeze(-1), 0.3),
        lambda x: F.alpha_dropout(x, 0.3, True),
        lambda x: F.gumbel_softmax(x),
        lambda x: torch.multinomial(x.flatten(1).softmax(1), 2),
    ],
)
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_other_draws(draws: Draws, draw: Any, shape: tuple[int, ...]) -> None:
    check(draws, draw, torch.randn(shape, device="cuda"))


ATTENTION = {
    "flash": (SDPBackend.FLASH_ATTENTION, torch.bfloat16),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, torch.float32),
    "efficient, half": (SDPBackend.EFFICIENT_ATTENTION, torch.float16),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, torch.bfloat16),
    "math": (SDPBackend.MATH, torch.float32),
}


@pytest.mark.parametrize("kernel", ATTENTION)
@pytest.mark.parametrize("shape", [(8, 6, 64, 32), (7, 5, 33, 64), (12, 1, 3, 16)], ids=str)
@pytest.mark.parametrize("kind", ["causal", "plain", "masked", "longer keys", "grouped heads"])
def test_attention_dropout_and_its_gradient(draws: Draws, kernel: str, shape: tuple[int, ...], kind: str) -> None:
    """Bit for bit, whatever kernel torch takes."""
    backend, dtype = ATTENTION[kernel]
    batch, heads, queries, width = shape
    keys = queries + 5 if kind == "longer keys" else queries
    groups = heads // 2 if kind == "grouped heads" and heads % 2 == 0 else heads
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = [
        torch.randn(batch, count, length, width, device="cuda", generator=generator).to(dtype)
        for count, length in ((heads, queries), (groups, keys), (groups, keys))
    ]
    mask = (
        torch.randn(batch, 1, queries, keys, device="cuda", generator=generator).to(dtype) if kind == "masked" else None
    )

    def draw(rows: torch.Tensor) -> torch.Tensor:
        given = [one[rows[:, 0]].requires_grad_() for one in inputs]
        made = F.scaled_dot_product_attention(
            *given,
            attn_mask=None if mask is None else mask[rows[:, 0]],
            dropout_p=0.2,
            is_causal=kind == "causal",
            enable_gqa=kind == "grouped heads",
        )
        made.square().sum().backward()
        return torch.cat([made.detach(), *(one.grad for one in given)], -2) if groups == heads else made.detach()

    rows = torch.arange(batch, device="cuda")[:, None]
    with sdpa_kernel(backend):
        try:
            draw(rows)
        except RuntimeError as error:
            pytest.skip(f"torch has no such kernel here: {str(error)[:80]}")
        check(draws, draw, rows)
    assert not draws.told
