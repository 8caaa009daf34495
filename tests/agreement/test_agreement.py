"""Workers whose weights or batches differ are stopped, and told what differs and where; healthy scripts never are."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.agreement import digest, watched
from paceline.comm.group import Group
from paceline.errors import PartedError


def rows(batch: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def own(rank: int) -> torch.Generator:
    """What a generator that the operating system has seeded is like: another one on each worker."""
    return torch.Generator().manual_seed(1000 + rank)


def played(group: Group, script: Callable[..., Any], options: dict[str, Any] | None = None) -> tuple[str, list[str]]:
    """What stops the script on this worker, and the notices. All workers stop at the same place, so the pool lives."""
    with staged(group, **(options or {})) as stage:
        try:
            script(group.rank)
            stage.end()
        except PartedError as error:
            return str(error), stage.notices
        return "", stage.notices


def refused(pool: Any, script: Callable[..., Any], *texts: str, world: int = 2, **options: Any) -> None:
    first, *others = pool(world).run(played, script, options)
    assert first[0], "the workers went on with different models"
    assert all(found[0] == first[0] for found in others)
    for text in texts:
        assert text in first[0], first[0]


def fine(pool: Any, script: Callable[..., Any], world: int = 2, **options: Any) -> list[str]:
    results = pool(world).run(played, script, options)
    assert [found for found, _ in results] == [""] * world
    return results[0][1]


def train(model: nn.Module, steps: int, update: Callable[[int], None], batch: Callable[[int], Any] = rows) -> None:
    for step in range(steps):
        model.zero_grad()
        (model(batch(6)) ** 2).mean().backward()
        update(step)


# -- updates that differ -----------------------------------------------------------------------------------------------


def rate_by_worker(rank: int) -> None:
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * rank)
    train(model, 3, lambda step: optimizer.step())


def rate_a_little_off(rank: int) -> None:
    """One part in ten thousand, under momentum."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + 1e-4 * rank), momentum=0.9)
    train(model, 3, lambda step: optimizer.step())


def noise_on_gradients(rank: int) -> None:
    model, generator = nn.Linear(3, 1).double(), own(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        for p in model.parameters():
            p.grad += 0.01 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        optimizer.step()

    train(model, 3, update)


def set_anew(rank: int) -> None:
    model, generator = nn.Linear(3, 1).double(), own(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.step()
        if step == 1:
            model.bias.data = torch.randn(1, generator=generator, dtype=torch.float64)

    train(model, 4, update)


def by_hand(rank: int) -> None:
    """No optimizer."""
    model = nn.Linear(3, 1).double()

    def update(step: int) -> None:
        for p in model.parameters():
            p.data -= (0.1 + 0.01 * rank) * p.grad

    train(model, 3, update)


def after_the_last_call(rank: int) -> None:
    """Only the last update differs: nothing is called after it."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * rank * (step == 3)
        optimizer.step()

    train(model, 4, update)


def in_the_accumulation(rank: int) -> None:
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(9):
        for _ in range(3):
            (model(rows()) ** 2).mean().backward()
        optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * rank * (step == 6)
        optimizer.step()
        optimizer.zero_grad()


def second_model(rank: int) -> None:
    one, other = nn.Linear(3, 3).double(), nn.Linear(3, 1).double()
    first = torch.optim.SGD(one.parameters(), lr=0.1)
    second = torch.optim.Adam(other.parameters(), lr=0.1 + 0.01 * rank)
    for _ in range(3):
        (other(one(rows())) ** 2).mean().backward()
        first.step()
        second.step()


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (rate_by_worker, ["Linear.weight[0, 0] is", "on worker 1", "after step 1 (equal at step 0)", "agreement.py:"]),
        (rate_a_little_off, ["Sequential.0.weight[0, 0] is", "after step 1 "]),
        (noise_on_gradients, ["Linear.weight", "after step 1 ", "test_agreement.py:"]),
        (set_anew, ["Linear.bias[0] is", "after step 2 (equal at step 1)"]),
        (by_hand, ["Linear.weight", "after step 1 (equal at step 0)", "test_agreement.py:"]),
        (after_the_last_call, ["Linear.weight", "after step 4 (equal at step 2)"]),
        (in_the_accumulation, ["Linear.weight", "after step 7 (equal at step 4)"]),
        (second_model, ["Linear.weight", "after step 1 "]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_update_that_differs_is_found(pool: Any, script: Callable[..., Any], texts: list[str], world: int) -> None:
    refused(pool, script, *texts, world=world)


# -- weights that no optimizer updates ---------------------------------------------------------------------------------


def frozen(rank: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.step()
        if step == 1 and rank == 1:
            model[0].weight.data[2, 1] += 1.0

    train(model, 3, update)


class WithBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x * self.scale)


def buffer_set_by_the_script(rank: int) -> None:
    model = WithBuffer().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.step()
        model.scale[1] = 1.0 + rank

    train(model, 3, update)


def without_any_backward(rank: int) -> None:
    """Weights that are changed and judged, as evolution does."""
    model, generator = nn.Linear(3, 1).double(), own(rank)
    with torch.no_grad():
        for _ in range(4):
            model(rows())
            model.weight += torch.randn(1, 3, generator=generator, dtype=torch.float64)


def gradients_asked_for(rank: int) -> None:
    """No backward, but torch.autograd.grad, and an update by hand."""
    model = nn.Linear(3, 1).double()
    for _ in range(4):
        parameters = list(model.parameters())
        grads = torch.autograd.grad((model(rows()) ** 2).mean(), parameters)
        for p, grad in zip(parameters, grads, strict=True):
            p.data -= (0.1 + 0.01 * rank) * grad


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (frozen, ["Sequential.0.weight[2, 1] is", "after step 2"]),
        (buffer_set_by_the_script, ["WithBuffer.scale[1] is 1 on worker 0, 2 on worker 1"]),
        (without_any_backward, ["Linear.weight[0, 0]"]),
        (gradients_asked_for, ["Linear.weight[0, 0]"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_weights_that_no_optimizer_updates_count_too(pool: Any, script: Callable[..., Any], texts: list[str]) -> None:
    refused(pool, script, *texts)


def saved_in_between(rank: int) -> None:
    """Differs after step 6, where no look is due, and is saved there."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * rank * (step == 5)
        optimizer.step()
        if step == 5:
            torch.save(model.state_dict(), io.BytesIO())

    train(model, 8, update)


def saved_by_one(rank: int) -> None:
    """As a script does that asks for its rank: nobody may wait for the others."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(step: int) -> None:
        optimizer.step()
        if rank == 0:
            torch.save(model.state_dict(), io.BytesIO())

    train(model, 4, update)


def test_saved_weights_are_compared_at_the_next_backward(pool: Any) -> None:
    refused(pool, saved_in_between, "after step 6 (equal")


def test_a_save_on_one_worker_waits_for_nobody(pool: Any) -> None:
    fine(pool, saved_by_one)


# -- batches that differ -----------------------------------------------------------------------------------------------


def shuffled_by_worker(rank: int) -> None:
    """The whole set in another order on each worker: the loss, a mean, is the same."""
    model, generator = nn.Linear(3, 1).double(), own(rank)
    train(model, 2, lambda step: None, lambda batch: rows(batch)[torch.randperm(batch, generator=generator)])


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 3), nn.Linear(3, 1)

    def forward(self, batch: dict[str, torch.Tensor], *, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.table(batch["tokens"])
        return self.head(x if mask is None else x * mask[:, None])


def integers_in_a_dictionary(rank: int) -> None:
    model = Tokens().double()
    for step in range(3):
        tokens = torch.arange(6) % (9 - (step == 2) * rank * 5)
        (model({"tokens": tokens}) ** 2).mean().backward()


def a_mask_by_name(rank: int) -> None:
    model = Tokens().double()
    for step in range(3):
        mask = torch.ones(6, dtype=torch.bool)
        mask[3] = rank == 0 or step < 1
        (model({"tokens": torch.arange(6)}, mask=mask) ** 2).mean().backward()


def evaluated_once_an_epoch(rank: int) -> None:
    """Right after an update that is not compared: the first evaluation is."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, 7, lambda step: optimizer.step())
    with torch.no_grad():
        model.eval()(rows(seed=rank))
    raise AssertionError("the script would print its accuracy")


def evaluated(rank: int) -> None:
    """A set that is evaluated in another order."""
    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        for step in range(3):
            model(rows(6, seed=rank if step == 2 else 0))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, factor: float, flag: str = "a") -> torch.Tensor:
        return self.fc(x) * factor


def a_number(rank: int) -> None:
    model = Scaled().double()
    (model(rows(), 1.0 + rank) ** 2).mean().backward()


def a_flag(rank: int) -> None:
    model = Scaled().double()
    (model(rows(), 1.0, flag="ab"[rank]) ** 2).mean().backward()


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        (shuffled_by_worker, ["argument 0 of Linear, called at", "test_agreement.py:", "after step 0"]),
        (integers_in_a_dictionary, ["argument 0['tokens'] of Tokens", "after step 2"]),
        (a_mask_by_name, ["argument mask of Tokens", "after step 1"]),
        (evaluated, ["argument 0 of Linear", "norm"]),
        (evaluated_once_an_epoch, ["argument 0 of Linear", "after step 7"]),
        (a_number, ["argument 1 of Scaled", "1 on worker 0, 2 on worker 1"]),
        (a_flag, ["Scaled, called at", "('argument flag', 'a')", "('argument flag', 'b')"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_batch_that_differs_is_found(pool: Any, script: Callable[..., Any], texts: list[str]) -> None:
    refused(pool, script, *texts)


def test_a_batch_that_differs_is_found_among_three(pool: Any) -> None:
    refused(pool, shuffled_by_worker, "argument 0 of Linear", world=3)


# -- rounding ----------------------------------------------------------------------------------------------------------


def last_bits(rank: int) -> None:
    """What another number of threads does to a clipped norm: each weight may be the next number."""
    model = nn.Linear(3, 40)
    optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), own(1)
    for _ in range(20):
        optimizer.zero_grad()
        (model(rows().float()) ** 2).mean().backward()
        optimizer.step()
        if rank:
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.nextafter(p, p + torch.rand(p.shape, generator=generator) - 0.5))


def batch_in_last_bits(rank: int) -> None:
    model = nn.Linear(3, 1)
    train(model, 3, lambda step: None, lambda batch: rows(batch).float() * (1 + 1e-7 * rank))


def more_than_the_last_bits(rank: int) -> None:
    model = nn.Linear(3, 40)
    train(model, 2, lambda step: model.weight.data[3, 1].mul_(1 + 1e-4 * rank), lambda batch: rows(batch).float())


def test_rounding_is_told_once_and_goes_on(pool: Any) -> None:
    told = [notice for notice in fine(pool, last_bits) if "rounding" in notice]
    assert len(told) == 1
    assert "Linear." in told[0]
    told = [notice for notice in fine(pool, batch_in_last_bits) if "rounding" in notice]
    assert len(told) == 1
    assert "argument 0 of Linear" in told[0]


def test_one_element_that_is_more_than_rounding_off(pool: Any) -> None:
    refused(pool, more_than_the_last_bits, "Linear.weight[3, 1] is", "after step 1")


# -- what healthy scripts do -------------------------------------------------------------------------------------------


class Norms(nn.Module):
    """Statistics of the slice: in batch norm, and in a buffer of its own while dropout draws."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.drop = nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(self.drop(x).mean(0), alpha=0.1)
        return self.fc(self.drop(self.norm(x)))


def statistics_of_slices(rank: int) -> None:
    model = Norms().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, 5, lambda step: optimizer.step(), lambda batch: rows(8))
    model.eval()
    model(rows(8))
    torch.save(model.state_dict(), io.BytesIO())


class Odd(nn.Module):
    """Parameters and buffers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.half_p = nn.Parameter(torch.ones(3, dtype=torch.float16))
        self.coarse = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.complex_p = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.number = nn.Parameter(torch.tensor(1.0))
        self.tied = self.fc.weight
        self.tiny = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
        for name, dtype in (("flags", torch.bool), ("counts", torch.int64), ("octets", torch.uint8)):
            self.register_buffer(name, torch.ones(3, dtype=dtype))
        self.register_buffer("nothing", None)

    def forward(self, x: Any, *rest: Any) -> torch.Tensor:
        x = x.to_dense() if x.is_sparse else x
        return self.fc(x.float()) * self.number + self.half_p.sum() + self.coarse.sum() + self.complex_p.abs().sum()


def every_kind_of_weight(rank: int) -> None:
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, 3, lambda step: optimizer.step())


def a_count_differs(rank: int) -> None:
    model = Odd()
    model(rows())
    model.counts[1] += rank
    train(model, 2, lambda step: None)


def every_kind_of_argument(rank: int) -> None:
    warnings.simplefilter("ignore")  # torch's own, of sparse and nested tensors
    model = Odd()
    others = [
        rows().to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64)
    ] + [
        rows().float().to(torch.float8_e5m2),
        torch.empty(6, 0),
        torch.empty(6, 2, device="meta"),
        torch.ones(1, 1).expand(6, 1000),
        rows().t().contiguous().t(),
        torch.full((6, 1), float("nan")),
        torch.eye(6).to_sparse(),
        torch.eye(6).to_sparse_csr(),
        torch.tensor(2.0),
        object(),
        "text",
        None,
        range(3),
    ]
    with torch.no_grad():
        for other in others:
            model(rows(), other)
        model(torch.nested.nested_tensor([rows(2), rows(4)], layout=torch.jagged).values())


def replaced_models(rank: int) -> None:
    """A model in a circle of references goes at another moment on each worker."""
    for fold in range(4):
        model = nn.Linear(3, 1).double()
        if rank:
            model.__dict__["circle"] = [model]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, 2, lambda step, optimizer=optimizer: optimizer.step(), lambda batch, f=fold: rows(batch, seed=f))
        torch.save(model.state_dict(), io.BytesIO())


def tied_and_shared(rank: int) -> None:
    """Two models with a layer in common, an embedding with sparse gradients, and a clipped norm."""
    table = nn.Embedding(6, 3, sparse=True).double()
    one, other = nn.Sequential(table, nn.Linear(3, 1).double()), nn.Sequential(table, nn.Linear(3, 1).double())
    dense = torch.optim.Adam([*one[1].parameters(), *other[1].parameters()], lr=0.1)
    sparse = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for _ in range(5):
        (one(torch.arange(5)) ** 2 + other(torch.arange(5)) ** 2).mean().backward()
        torch.nn.utils.clip_grad_norm_([*one[1].parameters(), *other[1].parameters()], 0.1)
        for optimizer in (dense, sparse):
            optimizer.step()
            optimizer.zero_grad()


def fast_weights(rank: int) -> None:
    """MAML's: a functional call puts computed tensors in the parameters' place."""
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        names, weights = zip(*model.named_parameters(), strict=True)
        grads = torch.autograd.grad((model(rows()) ** 2).mean(), weights, create_graph=True)
        fast = {n: w - 0.1 * g for n, w, g in zip(names, weights, grads, strict=True)}
        optimizer.zero_grad()
        (torch.func.functional_call(model, fast, (rows(),)) ** 2).mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "script",
    [
        statistics_of_slices,
        every_kind_of_weight,
        every_kind_of_argument,
        replaced_models,
        tied_and_shared,
        fast_weights,
    ],
    ids=lambda script: script.__name__,
)
@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
def test_a_healthy_script_goes_on(pool: Any, script: Callable[..., Any], world: int) -> None:
    told = fine(pool, script, world)
    assert not [notice for notice in told if "differ" in notice and "Batch norm" not in notice], told


def test_integers_have_no_rounding(pool: Any) -> None:
    refused(pool, a_count_differs, "Odd.counts[1] is 1 on worker 0, 2 on worker 1")


def sliced_batches(rank: int) -> None:
    model = nn.Linear(3, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for (x,) in DataLoader(TensorDataset(rows(13)), batch_size=4):
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()


@pytest.mark.parametrize("options", [{"sliced": True}, {"batch": "scale"}], ids=["slice view", "batch scale"])
def test_workers_may_hold_other_rows_where_that_is_meant(pool: Any, options: dict[str, Any]) -> None:
    fine(pool, sliced_batches, **options)


# -- what it costs -----------------------------------------------------------------------------------------------------


def counted(group: Group, looks: bool) -> tuple[int, int]:
    """How many words are read in 70 steps, and how many messages there are."""
    words, plain = [], digest._sum

    def counting(device: torch.device, flats: list[torch.Tensor]) -> torch.Tensor:
        words.append(sum(flat.numel() for flat in flats))
        return plain(device, flats)

    with pytest.MonkeyPatch.context() as patch, staged(group):
        patch.setattr(digest, "_sum", counting)
        if not looks:
            patch.setattr(watched, "is_due", lambda count: False)
        model = nn.Linear(3, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        before = group.pulse.collectives
        train(model, 70, lambda step: optimizer.step(), lambda batch: rows(batch).float())
        return sum(words), group.pulse.collectives - before


def test_six_looks_in_seventy_steps_and_no_message_of_their_own(pool: Any) -> None:
    # 20 weights and 18 numbers of the batch, after steps 0, 1, 2, 4, 16 and 64.
    (words, messages), other = pool(2).run(counted, True)
    assert words == 6 * (20 + 18)
    assert other == (words, messages)
    assert messages == pool(2).run(counted, False)[0][1]


def test_looks_grow_rare_and_never_end() -> None:
    looks = [count for count in range(5000) if watched.is_due(count)]
    assert looks == [0, 1, 2, 4, 16, 64, 256, 1024, 2048, 3072, 4096]
