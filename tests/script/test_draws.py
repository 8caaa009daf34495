"""Random draws of own rows, against the draw of the whole batch: bit for bit, without processes."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from staged import staged
from torch import distributions as dist
from torch import nn

from paceline.comm.group import Group
from paceline.mods import catalog
from paceline.script.draws import table
from paceline.script.draws.rows import AstrayError, DrawRule, Draws, rule_of, rules_of
from paceline.script.rows.crossings import Split

DTYPES = [torch.float32, torch.float64, torch.bfloat16]
Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: dict[str, Draw] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout, in place": lambda x: F.dropout(x.clone(), 0.3, inplace=True),
    "dropout, channels last": lambda x: F.dropout(x.contiguous(memory_format=torch.channels_last), 0.3),
    "dropout, batch second": lambda x: F.dropout(x.transpose(0, 1).contiguous(), 0.3).transpose(0, 1),
    "dropout, transposed": lambda x: F.dropout(x.transpose(0, 1), 0.3).transpose(0, 1),
    "dropout, several rows a sample": lambda x: F.dropout(x.reshape(-1, 6), 0.3).view(x.shape),
    "dropout2d": lambda x: F.dropout2d(x, 0.3),
    "dropout2d, in place": lambda x: F.dropout2d(x.clone(), 0.3, inplace=True),
    "dropout3d": lambda x: F.dropout3d(x[:, :, None], 0.3),
    "dropout1d": lambda x: F.dropout1d(x.flatten(2), 0.3),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha_dropout, in place": lambda x: F.alpha_dropout(x.clone(), 0.3, True, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x),
    "randint_like": lambda x: torch.randint_like(x, 2, 9),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli, p": lambda x: x.bernoulli(0.3),
    "bernoulli_, tensor": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    **{f"{name}": lambda x, name=name: getattr(torch.empty_like(x), name)() for name in table.FILLS[:3]},
    "geometric_": lambda x: torch.empty_like(x).geometric_(0.3),
    "cauchy_": lambda x: torch.empty_like(x).cauchy_(),
    "log_normal_": lambda x: torch.empty_like(x).log_normal_(),
    "random_": lambda x: torch.empty_like(x).random_(7),
    "normal, means": lambda x: torch.normal(x, 0.5),
    "normal, deviations": lambda x: torch.normal(0.0, x.abs()),
    "normal, size": lambda x: torch.normal(0.0, 1.0, (len(x), 3)),
    "multinomial": lambda x: torch.multinomial(x.flatten(1).float().softmax(1), 3),
    "multinomial, replacement": lambda x: torch.multinomial(x.flatten(1).float().softmax(1), 3, replacement=True),
    "rand": lambda x: torch.rand(len(x), 2),
    "randn, tuple": lambda x: torch.randn((len(x), 2)),
    "randint": lambda x: torch.randint(9, (len(x),)),
    "a generator of its own": lambda x: torch.rand(len(x), generator=torch.Generator().manual_seed(3)),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3, is_causal=True),
    "Normal": lambda x: dist.Normal(x, 1.0).rsample(),
    "Categorical": lambda x: dist.Categorical(logits=x.float()).sample(),
    "one draw a sample": lambda x: x * x.new_empty(len(x), 1, 1, 1).bernoulli_(0.5),
    "a mask of weights": lambda x: x * F.dropout(torch.ones(6), 0.5),
}


def on_worker(rank: int, world: int, batch: int) -> Split:
    return Split.of(SimpleNamespace(rank=rank, world=world), batch)  # type: ignore[arg-type]


def check(draws: Draws, draw: Draw, x: torch.Tensor, world: int) -> None:
    """Draws after the rules that the shapes tell."""
    torch.manual_seed(5)
    with draws.rehearsal() as at:
        whole = draw(x)
    assert at.drawn
    torch.manual_seed(5)
    assert torch.equal(draw(x), whole), "outside a sliced call it is torch's own"
    after = torch.rand(2)
    pieces: list[Any] = []
    for rank in range(world):
        split = on_worker(rank, world, len(x))
        rows = x.narrow(0, split.start, split.mine) if split.mine else x[:1]
        torch.manual_seed(5)
        with draws.rehearsal() as own:
            draw(rows)
        torch.manual_seed(5)
        with draws.in_call(split, rules_of(own.drawn or (), at.drawn, split)):
            piece = draw(rows)
        assert torch.equal(torch.rand(2), after), "the stream goes on as in one process"
        pieces.append(piece[: split.mine])
    assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_own_rows_are_those_of_the_whole_draw(draws: Draws, name: str, dtype: torch.dtype) -> None:
    x = torch.randn(7, 3, 5, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(draws, DRAWS[name], x, 3)


@given(
    name=st.sampled_from(sorted(DRAWS)),
    world=st.sampled_from([2, 3]),
    shape=st.tuples(st.integers(2, 9), st.integers(2, 4), st.integers(1, 5), st.just(6)),
)
def test_any_size(name: str, world: int, shape: tuple[int, ...]) -> None:
    draws = Draws()
    remove = table.find(draws)
    try:
        check(draws, DRAWS[name], torch.randn(shape, dtype=torch.float64), world)
    finally:
        remove()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_is_torchs_own_bit_for_bit(draws: Draws, dtype: torch.dtype, masked: bool) -> None:
    q, k, v = (torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(s)).to(dtype) for s in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril() if masked else None
    torch.manual_seed(1)
    expected = F.scaled_dot_product_attention(q, k, v, mask, 0.3)
    torch.manual_seed(1)
    with draws.rehearsal():
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, mask, 0.3), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
def test_recurrent_layers_draw_as_torch_does(draws: Draws, kind: Any, batch_first: bool) -> None:
    net = kind(3, 4, 3, dropout=0.4, batch_first=batch_first, bidirectional=True).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    torch.manual_seed(1)
    expected = net(x)
    torch.manual_seed(1)
    with draws.rehearsal():
        found = net(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_rule_says_which_dimension_holds_rows() -> None:
    split = on_worker(0, 2, 6)
    assert rule_of((3, 4), (6, 4), split) == DrawRule(2, 0)
    assert rule_of((4, 6), (4, 12), split) == DrawRule(2, 1)
    assert rule_of((4, 4), (4, 4), split) == DrawRule(2)
    assert rule_of((3, 3), (6, 6), split) == DrawRule(2), "rows twice: no rule, and the proof refuses"
    assert rule_of((2,), (5,), split) == DrawRule(1)


def drawn(draws: Draws, rules: Sequence[DrawRule], *shapes: tuple[int, ...]) -> list[int | None]:
    with draws.in_call(on_worker(1, 2, 6), rules):
        places = [draws.place(shape) for shape in shapes]
    return [None if place is None else place.dim for place in places]


def test_a_call_that_draws_otherwise_than_in_its_proof_is_found(draws: Draws) -> None:
    rules = [DrawRule(1), DrawRule(2, 1), DrawRule(3, 0)]
    assert drawn(draws, rules, (9,), (4, 3), (3, 4, 5)) == [None, 1, 0]
    with pytest.raises(AstrayError):
        drawn(draws, rules, (9,), (3, 4, 5))  # the second was skipped
    with pytest.raises(AstrayError):
        drawn(draws, rules, (9,), (4, 3), (3, 4, 5), (3, 4, 5))


def test_another_thread_of_the_script_draws_for_itself(draws: Draws) -> None:
    found: list[torch.Tensor] = []
    with draws.in_call(on_worker(0, 2, 6), [DrawRule(2, 0)]) as at:
        thread = threading.Thread(target=lambda: found.append(torch.rand(3, 2)))
        thread.start()
        thread.join()
        assert at.made == 0
    assert found[0].shape == (3, 2)


def test_patched_functions_pass_for_torchs_own(draws: Draws) -> None:
    assert pickle.loads(pickle.dumps(torch.rand)) is torch.rand
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.RReLU()))
    assert scripted(torch.ones(2, 3)).shape == (2, 3)
    assert torch.rand(2, 3, out=torch.empty(2, 3)).shape == (2, 3)


# -- on workers --------------------------------------------------------------------------------------------------------


class Picky(torch.autograd.Function):
    """Raises for a bad row, without Python code of the model that reads it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(x[:, :1] * 0, (x[:, 0] > 90).long(), reduction="none")[:, None] + x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.layer(Picky.apply(x)), 0.5)


def with_own_draws(group: Group) -> tuple[torch.Tensor, float, list[str]]:
    with staged(group) as stage:
        catalog.load(catalog.parse(["random=own"])[0]).on_stage(stage)
        torch.manual_seed(1)
        out = Noisy()(torch.ones(6, 3)).detach()
        return out, torch.rand(1).item(), stage.notices  # type: ignore[attr-defined]


def test_own_draws_differ_between_slices_and_the_run_says_so(pool: Any) -> None:
    torch.manual_seed(1)
    Noisy()
    after = torch.rand(1).item()
    for out, then, notices in pool(2).run(with_own_draws):
        assert not torch.equal(out[:3] != 0, out[3:] != 0)
        assert then == after, "the script's stream stays where it was"
        assert any("draws its own random numbers" in notice for notice in notices)


def after_a_bad_row(group: Group | None) -> list[float]:
    with staged(group) if group is not None else nullcontext():
        torch.manual_seed(1)
        model, said = Noisy(), []
        for step in range(4):
            x = torch.ones(6, 3)
            x[4] += 99 * (step == 2)
            try:
                said.append(model(x).sum().item())
            except IndexError:
                said.append(torch.rand(1).item())
        return [*said, torch.rand(1).item()]


def test_the_stream_after_an_exception_is_that_of_one_process(pool: Any) -> None:
    expected = after_a_bad_row(None)
    for found in pool(2).run(after_a_bad_row):
        assert found == pytest.approx(expected, rel=1e-5)
