"""Gradient buckets: after each backward every gradient is the average over the workers, whoever reached what and when.

The expected averages are computed on one process, by running each worker's part there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.comm.buckets import Buckets
from paceline.comm.channels import Pending
from paceline.comm.group import Group
from paceline.errors import ScriptError

Grads = list[torch.Tensor | None]
Part = Callable[[int, int, list[torch.Tensor]], torch.Tensor]  # (rank, step, parameters) → this worker's loss


def parameters(*sizes: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.linspace(-1, 1, size, dtype=dtype).requires_grad_() for size in sizes]


def attach(buckets: Buckets, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        index = buckets.adopt(tensor)
        tensor.register_post_accumulate_grad_hook(lambda p, index=index: buckets.ready(index, p))


def backward(buckets: Buckets, loss: torch.Tensor, site: int = 0) -> list[tuple[float, float]]:
    buckets.begin(site)
    loss.backward()
    return buckets.finish(float(loss.detach()), 1.0)


def grads(tensors: list[torch.Tensor]) -> Grads:
    return [None if t.grad is None else t.grad.detach().clone() for t in tensors]


def no_odd_gradients(parameter: torch.Tensor) -> None:
    raise AssertionError("a plain gradient was taken for an odd one")


def trained(group: Group, part: Part, steps: int, sizes: tuple[int, ...], zero: bool, bytes_: int) -> list[Grads]:
    tensors = parameters(*sizes)
    buckets = Buckets(group, no_odd_gradients, size=bytes_, first=bytes_)
    attach(buckets, tensors)
    found = []
    for step in range(steps):
        if zero:
            for tensor in tensors:
                tensor.grad = None
        backward(buckets, part(group.rank, step, tensors))
        found.append(grads(tensors))
    return found


def averaged(world: int, part: Part, steps: int, sizes: tuple[int, ...], zero: bool) -> list[Grads]:
    """The same on one process: each worker's gradients in turn, then their average."""
    tensors, total = parameters(*sizes), []
    sums: Grads = [None] * len(sizes)
    for step in range(steps):
        if zero:
            sums = [None] * len(sizes)
        for rank in range(world):
            own = torch.autograd.grad(part(rank, step, tensors), tensors, allow_unused=True)
            sums = [
                s if g is None else (g / world if s is None else s + g / world) for s, g in zip(sums, own, strict=True)
            ]
        total.append(list(sums))
    return total


def same(found: list[Grads], expected: list[Grads]) -> None:
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert (a is None) == (b is None), f"step {step}, parameter {i}: {a} instead of {b}"
            if a is not None:
                torch.testing.assert_close(a, b, msg=lambda m, s=step, i=i: f"step {s}, parameter {i}: {m}")


# -- which parameters a worker's part of the work reaches --------------------------------------------------------------


def all_reached(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return sum((rank + 1) * (step + 1) * (i + 1) * (t**2).sum() for i, t in enumerate(p))


def first_is_unused(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return all_reached(rank, step, p[1:])


def one_worker_reaches_the_second(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return all_reached(rank, step, p if rank == 1 else [p[0], *p[2:]])


def another_worker_at_each_step(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return all_reached(rank, step, p[:-1]) + (p[-1].sum() if (rank + step) % 2 else 0)


def others_at_each_step(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return all_reached(rank, step, [p[step % len(p)], p[(step + 1) % len(p)]])


def used_twice(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    return all_reached(rank, step, p) + (p[0] * rank).sum() + (p[0] * p[0].exp()).sum()


def order_turns_round(rank: int, step: int, p: list[torch.Tensor]) -> torch.Tensor:
    """A chain, whose gradients come from its end to its start: at every second step the other way."""
    x = torch.ones(1, dtype=torch.float64) * (rank + 1)
    for t in p if step % 2 else reversed(p):
        x = torch.tanh(x * t.sum() + t.mean())
    return x.sum()


PARTS = [
    all_reached,
    first_is_unused,
    one_worker_reaches_the_second,
    another_worker_at_each_step,
    others_at_each_step,
    used_twice,
    order_turns_round,
]


@pytest.mark.crossed("bytes_")
@pytest.mark.parametrize("bytes_", [1, 48, 1 << 20], ids=["a bucket each", "a few a bucket", "one bucket"])
@pytest.mark.parametrize("zero", [True, False], ids=["zeroed", "accumulated"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_gradients_are_averaged(pool: Any, part: Part, zero: bool, bytes_: int) -> None:
    sizes = (3, 1, 4, 2)
    expected = averaged(3, part, 4, sizes, zero)
    for found in pool(3).run(trained, part, 4, sizes, zero, bytes_):
        same(found, expected)


def test_all_workers_get_the_same_bits(pool: Any) -> None:
    first, *others = pool(3).run(trained, all_reached, 3, (5, 7), True, 1)
    for other in others:
        assert all(torch.equal(a, b) for x, y in zip(first, other, strict=True) for a, b in zip(x, y, strict=True))


def test_nobody_reached_it_and_it_keeps_no_gradient(pool: Any) -> None:
    for found in pool(2).run(trained, first_is_unused, 3, (3, 2), True, 1 << 20):
        assert [step[0] for step in found] == [None] * 3


# -- where gradients live, and when they travel ------------------------------------------------------------------------


class Watched:
    """A group that writes down when each bucket is sent."""

    def __init__(self, group: Group, log: list[Any]) -> None:
        self._group, self.log = group, log
        self.world, self.rank = group.world, group.rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def start_all_reduce(self, tensor: torch.Tensor, shared: Any = None, **about: Any) -> Pending:
        self.log.append(("sent", tensor.numel()))
        return self._group.start_all_reduce(tensor, shared, **about)


def sending(group: Group, sizes: tuple[int, ...], first: int, size: int, steps: int) -> list[Any]:
    log: list[Any] = []
    tensors = parameters(*sizes)
    buckets = Buckets(Watched(group, log), no_odd_gradients, first=first, size=size)  # type: ignore[arg-type]
    for tensor in tensors:
        index = buckets.adopt(tensor)

        def ready(p: torch.Tensor, index: int = index) -> None:
            log.append(("ready", index))
            buckets.ready(index, p)

        tensor.register_post_accumulate_grad_hook(ready)
    x = torch.ones(1, dtype=torch.float64)
    for _ in range(steps):
        log.append("backward")
        for tensor in tensors:
            x = torch.tanh(x * tensor.sum())
        backward(buckets, x.sum())
        x = x.detach()
    return log


def test_from_the_second_backward_on_a_bucket_is_sent_as_soon_as_it_is_full(pool: Any) -> None:
    """Eight bytes a number: the first bucket holds one parameter, the others two."""
    for log in pool(2).run(sending, (2, 3, 4, 5, 6), 8, 88, 2):
        second = log[len(log) - 1 - log[::-1].index("backward") + 1 :]
        came = [entry[1] for entry in second if entry[0] == "ready"]
        assert came == [4, 3, 2, 1, 0], "backward goes from the last parameter to the first"
        assert second == [
            ("ready", 4),
            ("sent", 6),  # a small first bucket
            ("ready", 3),
            ("ready", 2),
            ("sent", 9),
            ("ready", 1),
            ("ready", 0),
            ("sent", 5),
        ]


def test_the_first_backward_shows_the_order_and_sends_at_its_end(pool: Any) -> None:
    for log in pool(2).run(sending, (2, 3, 4, 5, 6), 8, 88, 1):
        assert [entry[0] for entry in log[1:]] == ["ready"] * 5 + ["sent"] * 3


def memory_of(group: Group) -> tuple[bool, bool, list[bool]]:
    tensors = parameters(3, 4, 5)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    one_memory = len({t.grad.untyped_storage().data_ptr() for t in tensors}) == 1
    before = [t.grad.data_ptr() for t in tensors]
    for t in tensors:
        t.grad.zero_()  # zero_grad(set_to_none=False)
    backward(buckets, all_reached(group.rank, 1, tensors))
    return one_memory, [t.grad.data_ptr() for t in tensors] == before, [t.grad.is_contiguous() for t in tensors]


def test_gradients_live_in_their_bucket(pool: Any) -> None:
    for one_memory, stays, contiguous in pool(2).run(memory_of):
        assert one_memory
        assert stays
        assert all(contiguous)


def order_differs(group: Group) -> Grads:
    """Each worker's backward reaches the parameters in another order: rank 0's counts."""
    tensors = parameters(2, 3, 4)
    buckets = Buckets(group, no_odd_gradients, first=1, size=1)
    attach(buckets, tensors)
    for step in range(3):
        for t in tensors:
            t.grad = None
        x = torch.ones(1, dtype=torch.float64) * (group.rank + 1)
        for t in tensors if group.rank == 0 else reversed(tensors):
            x = x + t.sum() * (group.rank + 1) * (step + 1)
            x = x * 1.0
        backward(buckets, x.sum())
    return grads(tensors)


def test_workers_whose_gradients_come_in_another_order_still_agree(pool: Any) -> None:
    for found in pool(3).run(order_differs):
        assert all(torch.allclose(g, torch.full_like(g, 2 * 3)) for g in found)


# -- several places in the script --------------------------------------------------------------------------------------


def two_sites(group: Group) -> list[Grads]:
    """A GAN's two backwards: each from its own line, over parameters that overlap."""
    tensors, found = parameters(2, 3, 4), []
    buckets = Buckets(group, no_odd_gradients, first=40, size=40)
    attach(buckets, tensors)
    for step in range(3):
        for t in tensors:
            t.grad = None
        backward(buckets, all_reached(group.rank, step, tensors[:2]), site=1)
        found.append(grads(tensors))
        backward(buckets, all_reached(group.rank, step, tensors[1:]), site=2)
        found.append(grads(tensors))
    return found


def test_two_backwards_from_different_lines_share_parameters(pool: Any) -> None:
    expected = []
    for step in range(3):
        tensors = parameters(2, 3, 4)
        for chosen in (tensors[:2], tensors[1:]):
            for rank in range(3):
                (all_reached(rank, step, chosen) / 3).backward()
            expected.append(grads(tensors))
    for found in pool(3).run(two_sites):
        same(found, expected)


def earlier_gradient(group: Group) -> Grads:
    """A parameter of the bucket was reached by an earlier backward only: it stays as it was."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors), site=1)
    backward(buckets, (tensors[1] * group.rank).sum(), site=2)
    return grads(tensors)


def test_a_gradient_that_this_backward_does_not_reach_stays(pool: Any) -> None:
    expected = averaged(2, all_reached, 1, (2, 3), True)[0]
    for first, second in pool(2).run(earlier_gradient):
        torch.testing.assert_close(first, expected[0])
        torch.testing.assert_close(second, expected[1] + 0.5)


# -- what a script does with its gradients -----------------------------------------------------------------------------


def kept(group: Group, how: str, sites: tuple[int, int]) -> tuple[list[bool], list[bool]]:
    """The script keeps gradients of a step, as gradient surgery does, and looks at them after the next."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors), sites[0])
    values = grads(tensors)
    keep: Any = {
        "a list": [t.grad for t in tensors],
        "one": [tensors[0].grad],
        "a view": [t.grad.flatten() for t in tensors],
        "a detached one": [t.grad.detach() for t in tensors],
    }[how]
    for t in tensors:
        t.grad = None
    backward(buckets, all_reached(group.rank, 4, tensors), sites[1])
    right = [torch.allclose(t.grad, 5 * v) for t, v in zip(tensors, values, strict=True)]
    return [torch.equal(k, v) for k, v in zip(keep, values, strict=False)], right


@pytest.mark.parametrize("sites", [(1, 1), (1, 2)], ids=["from one line", "from two lines"])
@pytest.mark.parametrize("how", ["a list", "one", "a view", "a detached one"])
def test_a_gradient_that_the_script_keeps_is_left_to_it(pool: Any, how: str, sites: tuple[int, int]) -> None:
    for untouched, right in pool(2).run(kept, how, sites):
        assert all(untouched)
        assert all(right)


def kept_while_others_accumulate(group: Group) -> tuple[bool, Grads]:
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    keep, value = tensors[0].grad, tensors[0].grad.clone()
    tensors[0].grad = None
    backward(buckets, all_reached(group.rank, 0, tensors))
    return torch.equal(keep, value), grads(tensors)


def test_its_neighbours_go_on_accumulating(pool: Any) -> None:
    once = averaged(2, all_reached, 1, (2, 3), True)[0]
    for untouched, (first, second) in pool(2).run(kept_while_others_accumulate):
        assert untouched
        torch.testing.assert_close(first, once[0])
        torch.testing.assert_close(second, 2 * once[1])


def own_tensor(group: Group) -> Grads:
    """The script puts its own tensor in a gradient's place: accumulation goes on from there."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    for t in tensors:
        t.grad = torch.ones_like(t)
    backward(buckets, all_reached(group.rank, 0, tensors))
    return grads(tensors)


def test_a_gradient_that_the_script_puts_in_is_added_to(pool: Any) -> None:
    once = averaged(2, all_reached, 1, (2, 3), True)[0]
    for found in pool(2).run(own_tensor):
        same([found], [[g + 1 for g in once]])


def other_data(group: Group) -> list[Grads]:
    """`p.grad.data = …`: the gradient is the same tensor, with other memory."""
    tensors, found = parameters(2, 3), []
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    for step in range(3):
        backward(buckets, all_reached(group.rank, step, tensors))
        found.append(grads(tensors))
        for t in tensors:
            t.grad.data = t.grad.data * 0.0
    return found


def test_a_gradient_whose_data_the_script_replaces(pool: Any) -> None:
    for found in pool(2).run(other_data):
        same(found, averaged(2, all_reached, 3, (2, 3), True))


def reused_memory(group: Group) -> bool:
    """Nobody keeps the gradients: the same memory is used at every step."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    places = set()
    for step in range(4):
        for t in tensors:
            t.grad = None
        backward(buckets, all_reached(group.rank, step, tensors))
        places.add(tensors[0].grad.data_ptr())
    return len(places) == 1


def test_memory_is_used_again_where_nobody_keeps_it(pool: Any) -> None:
    assert pool(2).run(reused_memory) == [True, True]


# -- parameters that change --------------------------------------------------------------------------------------------


def converted(
    group: Group, dtypes: list[torch.dtype], sites: list[int], with_gradients: bool
) -> list[tuple[torch.dtype, torch.Tensor]]:
    """`model.half()`, `model.double()`: the parameter stays, its data and gradient change type."""
    tensors = parameters(2, 3, dtype=torch.float32)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    found = []
    for dtype, site in zip(dtypes, sites, strict=True):
        for t in tensors:
            t.data = t.data.to(dtype)
            if t.grad is not None and with_gradients:
                t.grad.data = t.grad.data.to(dtype)
            t.grad = None
        backward(buckets, all_reached(group.rank, 0, tensors), site)
        found.append((tensors[0].grad.dtype, tensors[0].grad.double().clone()))
    return found


@pytest.mark.parametrize("with_gradients", [True, False], ids=["with its gradients", "without"])
@pytest.mark.parametrize("sites", [[1, 1, 1, 1], [1, 2, 2, 1]], ids=["from one line", "from two lines"])
@pytest.mark.parametrize("other", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_converted_model_gets_new_buckets(
    pool: Any, other: torch.dtype, sites: list[int], with_gradients: bool
) -> None:
    expected = averaged(2, all_reached, 1, (2, 3), True)[0][0]
    for found in pool(2).run(converted, [torch.float32, other, other, torch.float32], sites, with_gradients):
        assert [dtype for dtype, _ in found] == [torch.float32, other, other, torch.float32]
        for _, grad in found:
            torch.testing.assert_close(grad, expected, rtol=2e-2, atol=2e-2)


def resized(group: Group) -> Grads:
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    for t in tensors:
        t.grad = None
    tensors[0].data = torch.ones(5, dtype=torch.float64)
    backward(buckets, all_reached(group.rank, 0, tensors))
    return grads(tensors)


def test_a_parameter_that_grew_gets_a_new_place(pool: Any) -> None:
    expected = averaged(2, all_reached, 1, (2, 3), True)[0]
    for first, second in pool(2).run(resized):
        torch.testing.assert_close(first, torch.full((5,), 2 * 1.5, dtype=torch.float64))
        torch.testing.assert_close(second, expected[1])


def dropped(group: Group) -> Grads:
    """A model is thrown away and another takes its place (cross-validation)."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    tensors = tensors[1:]
    backward(buckets, (tensors[0] * group.rank).sum())
    new = parameters(4)
    attach(buckets, new)
    backward(buckets, (new[0] * group.rank).sum())
    return grads(tensors + new)


def test_a_parameter_that_is_gone_is_forgotten(pool: Any) -> None:
    kept_one = averaged(2, all_reached, 1, (2, 3), True)[0][1]
    for old, new in pool(2).run(dropped):
        torch.testing.assert_close(old, kept_one + 0.5)
        torch.testing.assert_close(new, torch.full((4,), 0.5, dtype=torch.float64))


def mixed_types(group: Group) -> list[tuple[torch.dtype, torch.Tensor]]:
    tensors = [*parameters(2), *parameters(3, dtype=torch.float32), *parameters(2, dtype=torch.bfloat16)]
    tensors.append(torch.ones(2, dtype=torch.complex64, requires_grad=True))
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    for _ in range(2):
        for t in tensors:
            t.grad = None
        backward(buckets, sum((t * group.rank).real.sum().double() for t in tensors))
    return [(t.grad.dtype, t.grad) for t in tensors]


def test_parameters_of_several_types(pool: Any) -> None:
    for found in pool(2).run(mixed_types):
        assert [dtype for dtype, _ in found] == [torch.float64, torch.float32, torch.bfloat16, torch.complex64]
        assert all(torch.allclose(grad, torch.full_like(grad, 0.5)) for _, grad in found)


# -- what cannot live in a bucket --------------------------------------------------------------------------------------


def odd(group: Group, kind: str) -> tuple[int, list[Any]]:
    table = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    other = parameters(3)[0]
    asked: list[int] = []

    def average(parameter: torch.Tensor) -> None:
        asked.append([table, other].index(parameter) if parameter is not other else 1)
        assert parameter is table
        total = parameter.grad.to_dense() if parameter.grad is not None else torch.zeros_like(table)
        total = total.detach().clone()
        group.all_reduce(total, "a test")
        parameter.grad = (total / group.world).to_sparse()

    buckets = Buckets(group, average)
    attach(buckets, [table, other])
    for _ in range(2):
        table.grad = other.grad = None
        buckets.begin(0)
        loss = (other * group.rank).sum()
        if kind == "on all" or group.rank == 1:
            rows = torch.nn.functional.embedding(torch.tensor([group.rank, 3]), table, sparse=True)
            loss = loss + rows.sum()
        loss.backward()
        buckets.finish(0.0, 1.0)
    return len(asked), [table.grad.to_dense(), other.grad]


@pytest.mark.parametrize("kind", ["on all", "on one"])
def test_sparse_gradients_are_averaged_on_their_own(pool: Any, kind: str) -> None:
    rows = {0: [0, 3], 1: [1, 3]} if kind == "on all" else {1: [1, 3]}
    expected = torch.zeros(4, 2, dtype=torch.float64)
    for indices in rows.values():
        for index in indices:
            expected[index] += 0.5
    for times, (table, other) in pool(2).run(odd, kind):
        assert times == 2
        torch.testing.assert_close(table, expected)
        torch.testing.assert_close(other, torch.full((3,), 0.5, dtype=torch.float64))


# -- a gradient that comes twice ---------------------------------------------------------------------------------------


def fires_twice(group: Group, steps: int) -> Grads:
    """Reentrant checkpoints: a second accumulation into the same parameter inside one backward."""
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    for _ in range(steps):
        for t in tensors:
            t.grad = None
        buckets.begin(0)
        (tensors[0] * group.rank).sum().backward()
        (tensors[0] * group.rank).sum().backward()
        (tensors[1] * group.rank).sum().backward()
        buckets.finish(0.0, 1.0)
    return grads(tensors)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_gradient_that_comes_twice_in_a_backward_is_sent_at_its_end(pool: Any, steps: int) -> None:
    for first, second in pool(2).run(fires_twice, steps):
        torch.testing.assert_close(first, torch.full((2,), 1.0, dtype=torch.float64))
        torch.testing.assert_close(second, torch.full((3,), 0.5, dtype=torch.float64))


def fires_again_when_sent(group: Group) -> None:
    tensors = parameters(2, 3)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    backward(buckets, all_reached(group.rank, 0, tensors))
    buckets.begin(0)
    all_reached(group.rank, 0, tensors).backward()
    all_reached(group.rank, 0, tensors).backward()


def test_a_gradient_that_comes_again_after_it_was_sent_is_an_error(pool: Any) -> None:
    with pytest.raises(ScriptError, match="a second time") as caught:
        pool(2).run(fires_again_when_sent)
    assert "use_reentrant=False" in caught.value.advice


# -- the tail ----------------------------------------------------------------------------------------------------------


def tail(group: Group) -> list[tuple[float, float, list[int]]]:
    tensors = parameters(2)
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    buckets.begin(0)
    (tensors[0] * 2).sum().backward()
    return buckets.finish(1.5 * group.rank, group.rank / 4, [group.rank, -1, 2**63 - 1])


def test_the_tail_brings_each_workers_loss_and_share_and_what_rides_along(pool: Any) -> None:
    riders = [[rank, -1, 2**63 - 1] for rank in range(3)]
    assert pool(3).run(tail) == [[(0.0, 0.0, riders[0]), (1.5, 0.25, riders[1]), (3.0, 0.5, riders[2])]] * 3


def nothing_reached(group: Group) -> Any:
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, parameters(2))
    buckets.begin(0)
    return buckets.finish(1.0, 1.0)


def test_a_backward_that_reaches_nothing(pool: Any) -> None:
    assert pool(2).run(nothing_reached) == [[(1.0, 1.0, [])] * 2] * 2


# -- a backward that is broken off -------------------------------------------------------------------------------------


def broken_off(group: Group) -> list[Grads]:
    """The last gradient of the third backward raises, when the others have been sent; the script goes on."""
    tensors = parameters(30, 20, 10)
    buckets = Buckets(group, no_odd_gradients, size=100, first=100)
    attach(buckets, tensors)
    step, found = 0, []

    def stop(gradient: torch.Tensor) -> None:
        if step == 2:
            raise LookupError("enough")

    tensors[0].register_hook(stop)
    for step in range(5):
        for tensor in tensors:
            tensor.grad = None
        loss = sum(t.exp().sum() for t in tensors) * float(step + group.rank)
        if step == 2:
            time.sleep(0.2 * group.rank)  # the first has long begun the next one
            with pytest.raises(LookupError):
                backward(buckets, loss)
        else:
            backward(buckets, loss)
            found.append(grads(tensors))
    return found


def test_what_was_sent_before_a_backward_was_broken_off_does_not_come_into_the_next(pool: Any) -> None:
    def part(rank: int, step: int, tensors: list[torch.Tensor]) -> torch.Tensor:
        steps = (0, 1, 3, 4)
        return sum(t.exp().sum() for t in tensors) * float(steps[step] + rank)

    expected = averaged(2, part, 4, (30, 20, 10), True)
    for found in pool(2).run(broken_off):
        same(found, expected)


def laid(group: Group) -> Any:
    """Gradients of parameters that lie in memory otherwise than row by row, and where the bucket keeps them."""
    last = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last).requires_grad_()
    turned = torch.randn(5, 3).t().detach().requires_grad_()
    gaps = torch.randn(4, 4)[:, ::2].detach().requires_grad_()
    tensors = [last, turned, gaps]
    buckets = Buckets(group, no_odd_gradients)
    attach(buckets, tensors)
    for _ in range(2):
        for tensor in tensors:
            tensor.grad = None
        weights = [torch.arange(float(t.numel())).view(t.shape) for t in tensors]
        backward(buckets, sum((t * w).sum() * (group.rank + 1) for t, w in zip(tensors, weights, strict=True)))
    found = [(t.grad.clone(), t.grad.stride() == t.stride()) for t in tensors]
    last.data = last.data.contiguous()  # converted in the middle of a run
    last.grad = None
    backward(buckets, (last * weights[0]).sum())
    return found, weights, (last.grad.clone(), last.grad.is_contiguous())


def test_gradients_lie_in_memory_as_their_parameters_do(pool: Any) -> None:
    """A fused optimizer walks through both alike: channels last against row by row would mix numbers up."""
    for found, weights, (converted, is_contiguous) in pool(2).run(laid):
        assert [alike for _, alike in found] == [True, True, False], "one with gaps cannot lie alike, and need not"
        for (grad, _), weight in zip(found, weights, strict=True):
            assert torch.equal(grad, weight * 1.5)
        assert torch.equal(converted, weights[0])
        assert is_contiguous
