"""The crossings between the whole batch and slices, against plain autograd on one process, in float64.

A wrong factor cannot hide: gradients are compared as they are, not after an optimizer that rescales them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from staged import lone_group

from paceline.comm.group import Group
from paceline.script.rows import crossings
from paceline.script.rows.crossings import Split

WORLDS = (1, 2, 3, 5)


# -- how rows are dealt out --------------------------------------------------------------------------------------------


class Rank:
    """As much of a group as a split looks at."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world


@given(st.integers(0, 200), st.integers(1, 17))
def test_rows_are_dealt_out_in_order_evenly_and_completely(batch: int, world: int) -> None:
    splits = [Split.of(Rank(rank, world), batch) for rank in range(world)]  # type: ignore[arg-type]
    rows = [row for split in splits for row in range(split.start, split.start + split.mine)]
    assert rows == list(range(batch))
    sizes = splits[0].sizes
    assert max(sizes) - min(sizes) <= 1
    assert all(split.sizes == sizes and split.batch == batch for split in splits)
    assert sum(split.share for split in splits) == pytest.approx(1.0 if batch else 0.0)
    # The rows [B·r/N, B·(r+1)/N) of the design.
    assert [split.start for split in splits] == [batch * rank // world for rank in range(world)]


# -- each crossing by itself -------------------------------------------------------------------------------------------


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def crossed(group: Group, name: str) -> dict[str, torch.Tensor]:
    """The forward value of a crossing, and the gradient that it hands back for a gradient that we know."""
    split = Split.of(group, 5)
    whole, mine = numbers(5, 2), numbers(split.mine, 2, seed=10 + group.rank)
    given_whole, given_local = numbers(5, 2, seed=1), numbers(split.mine, 2, seed=20 + group.rank)
    match name:
        case "cut":
            source, given, cross = whole, given_local, lambda t: crossings.cut(t, 0, split)
        case "gather":
            source, given, cross = mine, given_whole, lambda t: crossings.gather(t, 0, split)
        case "blend":
            source, given, cross = mine.sum(), given_whole.sum(), lambda t: crossings.blend(t, split.share, group)
        case "share":
            source, given, cross = whole, given_local.sum().expand(5, 2), lambda t: crossings.share(t, group)
        case "average":
            source, given, cross = mine.sum().expand(3), given_whole[:3, 0], lambda t: crossings.average(t, group)
        case "reduce_inside":
            source, given, cross = (
                mine.sum().expand(3),
                mine.sum() * numbers(3),
                lambda t: crossings.reduce_inside(t, group),
            )
    source = source.clone().requires_grad_()
    out = cross(source)
    (back,) = torch.autograd.grad(out, source, given)
    return {"source": source.detach(), "given": given.clone(), "out": out.detach(), "back": back}


def by_worker(pool: Any, name: str) -> list[dict[str, torch.Tensor]]:
    return pool(3).run(crossed, name)


def equal(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_cut_takes_own_rows_and_back_gathers_divided_by_n(pool: Any) -> None:
    found = by_worker(pool, "cut")
    equal(torch.cat([w["out"] for w in found]), numbers(5, 2))
    expected = torch.cat([w["given"] for w in found]) / 3
    for worker in found:
        equal(worker["back"], expected)


def test_gather_puts_rows_side_by_side_and_back_takes_own_rows_times_n(pool: Any) -> None:
    found = by_worker(pool, "gather")
    for worker in found:
        equal(worker["out"], torch.cat([w["source"] for w in found]))
    equal(torch.cat([w["back"] for w in found]), found[0]["given"] * 3)


def test_blend_sums_weighted_values_and_back_weighs_times_n(pool: Any) -> None:
    found, shares = by_worker(pool, "blend"), (1 / 5, 2 / 5, 2 / 5)
    for worker, share in zip(found, shares, strict=True):
        equal(worker["out"], sum(w["source"] * s for w, s in zip(found, shares, strict=True)))
        equal(worker["back"], worker["given"] * share * 3)


def test_share_hands_in_the_same_tensor_and_back_averages(pool: Any) -> None:
    found = by_worker(pool, "share")
    for worker in found:
        equal(worker["out"], numbers(5, 2))
        equal(worker["back"], sum(w["given"] for w in found) / 3)


def test_average_averages_and_back_averages(pool: Any) -> None:
    found = by_worker(pool, "average")
    for worker in found:
        equal(worker["out"], sum(w["source"] for w in found) / 3)
        equal(worker["back"], worker["given"])  # all workers hold the same: their average is that


def test_reduce_inside_sums_and_back_sums(pool: Any) -> None:
    found = by_worker(pool, "reduce_inside")
    for worker in found:
        equal(worker["out"], sum(w["source"] for w in found))
        equal(worker["back"], sum(w["given"] for w in found))


def test_on_one_worker_every_crossing_is_the_identity() -> None:
    group = lone_group()
    for name in ("cut", "gather", "blend", "share", "average", "reduce_inside"):
        found = crossed(group, name)
        equal(found["out"], found["source"])
        equal(found["back"], found["given"])


# -- programs: calls in slices with whatever a script puts around them -------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A training step. `of` picks what the script computes from its models."""

    batch: int = 4
    width: int = 2
    calls: int = 1  # chained: the output of one is the input of the next
    batch_dim: int = 0
    input_needs_grad: bool = False
    shared: bool = False  # a whole tensor without a batch is an argument, with a gradient of its own
    penalty: bool = False  # a weight penalty, outside all calls
    reused: bool = False  # a parameter of the first call is used outside, too
    loss: str = "sum"
    second: str = ""  # a gradient of gradients


class Calls:
    """Calls in slices, as `sliced` makes them."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def rows(self, function: Callable[..., Any], x: torch.Tensor, dim: int, *shared: torch.Tensor) -> torch.Tensor:
        split = Split.of(self.group, x.shape[dim])
        local = function(crossings.cut(x, dim, split), *(crossings.share(s, self.group) for s in shared))
        return crossings.gather(local, dim, split)

    def value(self, function: Callable[..., Any], x: torch.Tensor, dim: int, kind: str) -> torch.Tensor:
        split = Split.of(self.group, x.shape[dim])
        weight = split.share if kind == "mean" else float(split.mine > 0)
        return crossings.blend(function(crossings.cut(x, dim, split)), weight, self.group)

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        return crossings.average(grad, self.group)


class Plain:
    """The same on one process."""

    def rows(self, function: Callable[..., Any], x: torch.Tensor, dim: int, *shared: torch.Tensor) -> torch.Tensor:
        return function(x, *shared)

    def value(self, function: Callable[..., Any], x: torch.Tensor, dim: int, kind: str) -> torch.Tensor:
        return function(x)

    def gradient(self, grad: torch.Tensor) -> torch.Tensor:
        return grad


def play(program: Program, calls: Calls | Plain) -> dict[str, torch.Tensor]:
    """Everything that a script could look at after its backward."""
    p, dim = program, program.batch_dim
    weights = [(numbers(p.width, p.width, seed=i) * 0.7).requires_grad_() for i in range(p.calls)]
    biases = [numbers(p.width, seed=20 + i).requires_grad_() for i in range(p.calls)]
    raw = numbers(p.batch, p.width, seed=40)
    x = (raw.t().contiguous() if dim else raw).requires_grad_(p.input_needs_grad)
    scale = numbers(p.width, seed=41).requires_grad_(p.shared)

    def layer(i: int) -> Callable[..., torch.Tensor]:
        def forward(rows: torch.Tensor, *shared: torch.Tensor) -> torch.Tensor:
            flat = rows.transpose(0, dim) @ weights[i] + biases[i]
            for each in shared:
                flat = flat * each
            return torch.tanh(flat).transpose(0, dim)

        return forward

    y = x
    for i in range(p.calls):
        y = calls.rows(layer(i), y, dim, *([scale.exp()] if p.shared else []))
    loss = _loss(program, calls, y)
    if p.penalty:
        loss = loss + 0.1 * (weights[0] ** 2).sum()
    if p.reused:
        loss = loss + (biases[0] * y.mean() if p.batch else biases[0]).sum()
    if p.second == "of the input":
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = loss + ((gradient.norm() - 1) ** 2 if p.batch else gradient.sum())
    elif p.second == "of a parameter":
        (gradient,) = torch.autograd.grad(loss, weights[0], create_graph=True)
        loss = loss + (calls.gradient(gradient) ** 2).sum()
    elif p.second == "of a gradient of a parameter":
        for _ in range(2):
            (gradient,) = torch.autograd.grad(loss, weights[0], create_graph=True)
            loss = (calls.gradient(gradient) ** 2).sum()
    elif p.second == "of a step":
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        weights_after = [w - 0.3 * calls.gradient(g) for w, g in zip(weights, gradients, strict=True)]
        loss = _loss(
            program,
            calls,
            calls.rows(
                lambda rows, w: torch.tanh(rows.transpose(0, dim) @ w).transpose(0, dim), x, dim, weights_after[0]
            ),
        )
    leaves = {f"weight {i}": w for i, w in enumerate(weights)} | {f"bias {i}": b for i, b in enumerate(biases)}
    leaves |= ({"input": x} if p.input_needs_grad else {}) | ({"scale": scale} if p.shared else {})
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    out = {name: calls.gradient(g) for name, g in zip(leaves, found, strict=True) if g is not None}
    return {name: value.detach() for name, value in (out | {"output": y, "loss": loss}).items()}


def _loss(program: Program, calls: Calls | Plain, y: torch.Tensor) -> torch.Tensor:
    dim = program.batch_dim
    target = numbers(program.batch, program.width, seed=42)
    target = target.t() if dim else target
    match program.loss:
        case "sum":
            return ((y - target) ** 2).sum()
        case "mean":
            return ((y - target) ** 2).mean()
        case "over pairs":  # contrastive: every sample against every other
            flat = y.transpose(0, dim)
            return torch.logsumexp(flat @ flat.t(), 1).sum()
        case "returned mean":
            return calls.value(lambda rows: (rows**3).mean(), y, dim, "mean")
        case "returned sum":
            return calls.value(lambda rows: (rows**3).sum(), y, dim, "sum")
        case "of one row":
            return (y.narrow(dim, program.batch // 2, 1) ** 2).sum()
    raise ValueError(program.loss)


def played(group: Group, program: Program) -> dict[str, torch.Tensor]:
    return play(program, Calls(group))


def check(pool: Any, world: int, program: Program) -> None:
    expected = play(program, Plain())
    for rank, found in enumerate(pool(world).run(played, program)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            why = f"{name} on worker {rank} of {world}"
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, why=why: f"{why}: {m}")


SECONDS = ["of the input", "of a parameter", "of a gradient of a parameter", "of a step"]
LOSSES = ["sum", "mean", "over pairs", "returned mean", "returned sum", "of one row"]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    batch = draw(st.integers(0, 11))
    loss = draw(st.sampled_from(LOSSES if batch else ["sum", "returned sum"]))
    second = draw(st.sampled_from(["", "", *SECONDS]))
    return Program(
        batch=batch,
        width=draw(st.integers(1, 3)),
        calls=draw(st.integers(1, 3)),
        batch_dim=draw(st.integers(0, 1)),
        input_needs_grad=second == "of the input" or draw(st.booleans()),
        shared=draw(st.booleans()),
        penalty=draw(st.booleans()),
        reused=draw(st.booleans()),
        loss=loss,
        second=second,
    )


@given(program=programs(), world=st.sampled_from(WORLDS))
@example(program=Program(batch=1), world=3)
@example(program=Program(batch=0), world=2)
@example(program=Program(batch=2, calls=3, input_needs_grad=True), world=5)
@example(program=Program(batch=3, loss="returned mean", shared=True), world=5)
def test_a_step_in_slices_has_the_numbers_of_one_process(pool: Any, program: Program, world: int) -> None:
    check(pool, world, program)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_kind_of_loss(pool: Any, loss: str, world: int) -> None:
    check(pool, world, Program(batch=7, calls=2, loss=loss, input_needs_grad=True))


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("loss", ["sum", "mean", "returned mean", "over pairs"])
def test_gradients_of_gradients(pool: Any, loss: str, second: str, world: int) -> None:
    check(pool, world, Program(batch=4, calls=2, loss=loss, second=second, input_needs_grad=True, shared=True))


def test_a_weight_penalty_outside_counts_once(pool: Any) -> None:
    check(pool, 3, Program(penalty=True))


def test_a_parameter_used_inside_and_outside(pool: Any) -> None:
    check(pool, 3, Program(reused=True, penalty=True, calls=2))


# -- rows that are not there -------------------------------------------------------------------------------------------


def borrowed(group: Group) -> dict[str, Any]:
    """One row for three workers: two of them compute a borrowed one."""
    split = Split.of(group, 1)
    x = numbers(1, 2).requires_grad_()
    weight = numbers(2, 2, seed=1).requires_grad_()
    rows = crossings.cut(x, 0, split)
    y = crossings.gather(rows @ weight, 0, split)
    gx, gw = torch.autograd.grad((y**2).sum(), [x, weight])
    return {"rows": rows.shape[0], "y": y.detach(), "gx": gx, "gw": crossings.average(gw, group)}


def test_a_borrowed_row_is_computed_and_dropped(pool: Any) -> None:
    x, weight = numbers(1, 2).requires_grad_(), numbers(2, 2, seed=1).requires_grad_()
    y = x @ weight
    gx, gw = torch.autograd.grad((y**2).sum(), [x, weight])
    for found in pool(3).run(borrowed):
        assert found["rows"] == 1
        equal(found["y"], y.detach())
        equal(found["gx"], gx)
        equal(found["gw"], gw)


def blended_nan(group: Group) -> float:
    value = torch.tensor(float("nan") if group.rank else 2.0, dtype=torch.float64)
    return crossings.blend(value, 0.0 if group.rank else 1.0, group).item()


def test_a_worker_of_weight_zero_adds_nothing_whatever_its_value(pool: Any) -> None:
    assert pool(3).run(blended_nan) == [2.0] * 3


def empty(group: Group) -> tuple[Any, Any, Any]:
    split = Split.of(group, 0)
    x = torch.empty(0, 2, dtype=torch.float64, requires_grad=True)
    weight = numbers(2, 2).requires_grad_()
    y = crossings.gather(crossings.cut(x, 0, split) @ weight, 0, split)
    gx, gw = torch.autograd.grad(y.sum(), [x, weight])
    return y.shape, gx.shape, crossings.average(gw, group)


def test_a_batch_of_nothing(pool: Any) -> None:
    for y, gx, gw in pool(2).run(empty):
        assert y == gx == (0, 2)
        assert not gw.any()


# -- what is not a floating number -------------------------------------------------------------------------------------


def gathered_of(group: Group, dtype: torch.dtype) -> tuple[torch.Tensor, bool]:
    split = Split.of(group, 5)
    whole = (torch.arange(10).view(5, 2) % 3).to(dtype)
    found = crossings.gather(crossings.cut(whole, 0, split), 0, split)
    return found, found.requires_grad


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.bfloat16, torch.complex64], ids=str)
def test_rows_of_any_type_are_gathered(pool: Any, dtype: torch.dtype) -> None:
    for found, requires_grad in pool(3).run(gathered_of, dtype):
        assert torch.equal(found, (torch.arange(10).view(5, 2) % 3).to(dtype))
        assert not requires_grad


def complex_gradient(group: Group) -> torch.Tensor:
    split = Split.of(group, 5)
    weight = torch.complex(numbers(2), numbers(2, seed=1)).requires_grad_()
    x = torch.complex(numbers(5, 2, seed=2), numbers(5, 2, seed=3))
    y = crossings.gather(crossings.cut(x, 0, split) * weight, 0, split)
    (grad,) = torch.autograd.grad((y.abs() ** 2).sum() + y.real.sum(), weight)
    return crossings.average(grad, group)


def test_complex_numbers_cross_as_well(pool: Any) -> None:
    expected = complex_gradient(lone_group())
    for found in pool(3).run(complex_gradient):
        equal(found, expected)


def counted(group: Group) -> tuple[int, torch.dtype, bool]:
    """A model that returns how many it got right: a sum of whole numbers."""
    split = Split.of(group, 5)
    found = crossings.blend(torch.tensor(split.mine), 1.0, group)
    return found.item(), found.dtype, found.requires_grad


def test_counts_are_summed_as_counts(pool: Any) -> None:
    assert pool(3).run(counted) == [(5, torch.int64, False)] * 3


# -- what makes a crossing free ----------------------------------------------------------------------------------------


def without_gradients(group: Group) -> tuple[bool, bool, bool]:
    split, whole = Split.of(group, 4), numbers(4, 2)
    rows = crossings.cut(whole, 0, split)
    in_place = rows.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    same = crossings.share(whole, group) is whole
    with torch.no_grad():
        free = crossings.cut(whole.requires_grad_(), 0, split).grad_fn is None
    return in_place, same, free


def test_data_without_a_gradient_is_cut_in_place(pool: Any) -> None:
    assert pool(2).run(without_gradients) == [(True, True, True)] * 2


def counted_crossings(group: Group) -> list[int]:
    """How often a gradient has gone from the whole into slices: what tells that work was split."""
    split, before, counts = Split.of(group, 4), group.crossed, []
    weight = numbers(2).requires_grad_()
    loss = crossings.gather(crossings.cut(numbers(4, 2), 0, split) * weight, 0, split).sum()
    loss.backward()
    counts.append(group.crossed - before)
    (weight * 2).sum().backward()
    counts.append(group.crossed - before)
    crossings.blend(weight.sum(), split.share, group).backward()
    counts.append(group.crossed - before)
    return counts


def test_crossings_are_counted(pool: Any) -> None:
    assert pool(2).run(counted_crossings) == [[1, 1, 2]] * 2
