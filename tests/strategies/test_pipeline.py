"""Pipeline: the numbers of plain Python from models in stages; where models are cut, and which are refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from staged import lone_group
from staged import staged as on_stage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm.axes import Axes
from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.comm.stopwatch import Stopwatch
from paceline.errors import ScriptError, UsageError
from paceline.launch import Output, launch
from paceline.script.seams import instrument
from paceline.script.seams.stage import Stage
from paceline.settings import RunSettings
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelined.cutting import cut_model
from paceline.strategies.pipelined.train_step import TrainStep


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = self.norm(x) @ x.transpose(1, 2)
        if mask is not None:
            scores = scores + mask
        return x + self.dropout(self.out(scores.softmax(-1) @ x))


class Tied(nn.Module):
    """A small transformer whose head shares the weights of its embedding; its mask goes round the chain of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(13, 8), nn.Parameter(torch.randn(5, 8))
        self.blocks = nn.ModuleList(Block(8) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 13, bias=False)
        self.head.weight = self.word.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.word(ids) + self.place
        mask = torch.full((5, 5), -1e9, dtype=x.dtype, device=x.device).triu(1)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """The sums of a residual network stand in the model's own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Skipping(nn.Module):
    """A U-Net: outputs of the way down are used on the way up, over the cuts."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(12, 6) for _ in range(3))
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(6, 13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for down in self.down:
            skipped.append(x := torch.relu(down(x)))
        for up in self.up:
            x = torch.tanh(up(torch.cat([self.dropout(x), skipped.pop()], 1)))
        return self.head(x)


class Looking(nn.Module):
    """Its forward looks at numbers that only one stage has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.second(first if first.sum() > 0 else -first)


def mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 16), nn.Tanh()),
        *(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 13)),
    )


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 13))
    )


class Noise(nn.Module):
    """Adds the same noise to all rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn(6, dtype=x.dtype)


def noisy() -> nn.Module:
    """Its stages draw in different ways."""
    noise, layers = [Noise(), nn.Dropout(0.3), Noise(), nn.Dropout(0.2)], [nn.Linear(6, 6) for _ in range(4)]
    return nn.Sequential(*(m for pair in zip(layers, noise, strict=True) for m in pair), nn.Linear(6, 13))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "tied": Tied,
    "residual": lambda: nn.Sequential(Residual(), nn.Linear(6, 13)),
    "skipping": Skipping,
    "batch norm": with_batch_norm,
    "noisy": noisy,
}


def train(name: str, momentum: float = 0.9) -> list[Any]:
    """Losses and norms, and all that is left in the end."""
    torch.manual_seed(3)
    model = MODELS[name]().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    numbers: list[Any] = []
    for step in range(4):
        rows = 11 - 3 * (step == 2)
        x = torch.randint(13, (rows, 5)) if name == "tied" else torch.randn(rows, 6, dtype=torch.float64)
        y = torch.randint(13, (rows, 5) if name == "tied" else (rows,))
        loss = nn.functional.cross_entropy(model(x).flatten(0, -2), y.flatten())
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        optimizer.zero_grad()
        (loss + 1e-3 * penalty).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        grads = [p.grad.norm().item() for p in model.parameters()]
        optimizer.step()
        numbers += [loss.item(), norm.item(), grads]
    model.eval()
    with torch.no_grad():
        numbers.append(model(x).sum().item())
    return [*numbers, torch.rand(1).item(), {k: v.clone() for k, v in model.state_dict().items()}]


class Notices(list[str]):
    strategy: Pipeline


@contextmanager
def staged(group: Group, **arguments: Any) -> Iterator[Notices]:
    """The seams of torch lead to a pipeline over all workers until the block ends. Gives the notices."""
    notices = Notices()
    group.watch, group.pulse = Stopwatch(), Pulse(lambda text, mod: notices.append(text))
    notices.strategy = strategy = Pipeline(**{"stages": group.world} | arguments)
    stage = Stage(RunSettings(script="", workers=group.world), group, strategy)
    strategy.on_stage(stage)
    lose = instrument.find(stage)
    try:
        yield notices
        stage.end()
    finally:
        lose()


def in_stages(group: Group, arguments: dict[str, Any], script: Callable[..., Any], *args: Any) -> Any:
    with staged(group, **arguments):
        return script(*args)


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, list):
        for a, b in zip(found, expected, strict=True):
            compare(a, b)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-12)
    else:
        assert found == pytest.approx(expected, rel=1e-10)


def slow(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", MODELS)
def test_two_stages_give_the_numbers_of_plain_python(pool: Any, name: str) -> None:
    expected = train(name)
    for found in pool(2).run(in_stages, {}, train, name):
        compare(found, expected)


@pytest.mark.parametrize("name", ["tied", "batch norm", *map(slow, ("mlp", "residual", "skipping"))])
def test_two_replicas_of_two_stages_give_the_numbers_of_plain_python(pool: Any, name: str) -> None:
    expected = train(name)
    for found in pool(4).run(in_stages, {"stages": 2}, train, name):
        compare(found, expected)


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight = kind, torch.linspace(0.5, 2, 13, dtype=torch.float64) if kind == "weighted" else None
        self.body = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Dropout(0.2), nn.Linear(24, 24), nn.Tanh())
        self.head = nn.Linear(24, 13)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.head(self.body(x))
        if self.kind == "sum":
            return nn.functional.cross_entropy(logits, y, reduction="sum"), (logits.argmax(1) == y).sum()
        loss = nn.functional.cross_entropy(logits, y, self.weight)
        if self.kind == "two terms":
            return loss + 1e-2 * logits.square().mean()
        return {"loss": loss, "logits": logits} if self.kind == "logits" else loss


def train_with_loss(kind: str) -> list[Any]:
    torch.manual_seed(3)
    model = WithLoss(kind).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    numbers: list[Any] = []
    for step in range(5):
        x, y = torch.randn(11 - 3 * (step == 2), 6, dtype=torch.float64), torch.randint(13, (11 - 3 * (step == 2),))
        if step > 2 or kind == "logits":
            y[:3], y[-1] = -100, -100  # all of a micro-batch's targets
        out = model(x, y)
        loss, *rest = out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else [out]
        optimizer.zero_grad()
        (3 * loss + sum(one.square().mean() for one in rest if one.requires_grad)).backward()
        numbers += [loss.item(), *(one.double().sum().item() for one in rest)]
        numbers.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return [*numbers, torch.rand(1).item(), {k: v.clone() for k, v in model.state_dict().items()}]


def train_with_loss_in_stages(group: Group, kind: str) -> tuple[list[Any], list[str], int]:
    with staged(group, stages=2) as notices:
        return train_with_loss(kind), list(notices), notices.strategy._used


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["loss", "logits", "weighted", "two terms", "sum"])
def test_a_model_that_returns_its_loss_is_computed_in_micro_batches(pool: Any, kind: str, workers: int) -> None:
    expected = train_with_loss(kind)
    for found, notices, used in pool(workers).run(train_with_loss_in_stages, kind):
        compare(found, expected)
        assert not [notice for notice in notices if "micro-batches" in notice]
        assert used > 1


def train_on_a_loader() -> list[float]:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(20, 6, dtype=torch.float64), torch.randint(3, (20,)))
    losses = []
    for x, y in DataLoader(data, batch_size=8):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, *(p.norm().item() for p in model.parameters())]


def train_on_slices(group: Group) -> list[float]:
    with on_stage(group, Pipeline(stages=2), sliced=True):
        return train_on_a_loader()


def test_in_the_slice_view_each_replica_sees_its_slice(pool: Any) -> None:
    expected = train_on_a_loader()
    for found in pool(4).run(train_on_slices):
        compare(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", ["tied", "batch norm"])
def test_more_replicas_and_stages_give_the_numbers_of_plain_python(pool: Any, name: str, stages: int) -> None:
    expected = train(name)
    for found in pool(6).run(in_stages, {"stages": stages, "chunks": 2}, train, name):
        compare(found, expected)


@pytest.mark.parametrize("name", ["tied", "noisy", *map(slow, ("mlp", "residual", "skipping"))])
def test_two_parts_of_the_model_for_each_worker_give_the_numbers_of_plain_python(pool: Any, name: str) -> None:
    expected = train(name)
    for found in pool(2).run(in_stages, {"schedule": "interleaved", "chunks": 3}, train, name):
        compare(found, expected)


class Gated(nn.Module):
    """Mixes samples if its gate is open. The gate is a tensor, which no key of a call shows."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("gate", torch.tensor(gate))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y + self.gate * y.mean(0)


def train_gated() -> list[Any]:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(6, 6), Gated(0.0), nn.Tanh(), nn.Linear(6, 6)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = []
    for step in range(4):
        model[1].gate.fill_(float(step > 1))  # type: ignore[union-attr]
        loss = model(torch.randn(8, 6, dtype=torch.float64)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        numbers += [loss.item(), *(p.grad.norm().item() for p in model.parameters() if p.grad is not None)]
    return numbers


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_model_that_mixes_samples_later_gives_the_numbers_of_plain_python(pool: Any, workers: int) -> None:
    expected = train_gated()
    for found in pool(workers).run(in_stages, {"stages": 2}, train_gated):
        compare(found, expected)


def mix_weakly(group: Group) -> list[str]:
    with staged(group) as notices:
        model = nn.Sequential(nn.Linear(6, 6), Gated(1e-6), nn.Linear(6, 6))
        model(torch.randn(8, 6)).sum().backward()
    return list(notices)


def test_a_weak_mixing_of_samples_is_found_and_the_notice_names_operation_and_line(pool: Any) -> None:
    reason = r"not cut into micro-batches, because output.* depends on other samples.*, by add \(test_pipeline.py:\d+\)"
    for notices in pool(2).run(mix_weakly):
        assert re.search(reason, " ".join(notices))


class WeakPath(nn.Module):
    """A weak path goes round the second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        return self.third(self.second(first)) + 1e-12 * torch.tanh(first)


def test_a_weak_path_round_the_cut_is_handed_over() -> None:
    cutting = cut_model(lone_group(), nn.Module.__call__, WeakPath(), ((torch.randn(4, 6),), {}), 2, "parameters")
    assert cutting.segments.carried == [[(0, 0)]]


SEEN: list[int] = []  # rows of the batches that a worker computes


class Counted(nn.Linear):
    def forward(self, x: torch.Tensor, seen: list[int] = SEEN) -> torch.Tensor:
        seen.append(len(x))  # where the proof does not look: a list that depends on the rows would keep it whole
        return super().forward(x)


def count_rows(group: Group, chunks: int) -> list[int]:
    with staged(group, stages=2, chunks=chunks):
        model = nn.Sequential(Counted(6, 6), nn.Dropout(), nn.Tanh(), Counted(6, 6))
        for _ in range(3):
            SEEN.clear()
            model(torch.randn(10, 6)).sum().backward()
    return list(SEEN)


@pytest.mark.parametrize(("chunks", "rows"), [(2, [2, 3]), (1, [5])])
def test_each_replica_computes_its_own_rows(pool: Any, chunks: int, rows: list[int]) -> None:
    assert pool(4).run(count_rows, chunks) == [rows] * 4


def drop_out_of_memory_order() -> list[float]:
    """Attention's output does not lie in memory row by row, and torch draws in the order of memory."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True).double()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for rows in (6, 2, 2):
        loss = model(torch.randn(rows, 7, 8, dtype=torch.float64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_replicas_of_one_row_have_the_dropout_of_one_process(pool: Any) -> None:
    assert (
        pool(4).run(in_stages, {"stages": 2}, drop_out_of_memory_order)
        == [pytest.approx(drop_out_of_memory_order(), rel=1e-10)] * 4
    )


@pytest.mark.slow
@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cut", ["parameters", "time"])
def test_more_stages_give_the_numbers_of_plain_python(pool: Any, name: str, stages: int, cut: str) -> None:
    if (name, stages) == ("batch norm", 4):
        pytest.skip("has three layers")
    expected = train(name)
    for found in pool(stages).run(in_stages, {"chunks": 3, "cut": cut}, train, name):
        compare(found, expected)


class Counting(nn.Module):
    """Its forward leaves a number behind, which each worker would leave after another part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        self.size = first.abs().mean()
        return self.second(first)


class Named(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("one layer", "cannot be cut into 2 stages of a pipeline: it has only one layer"),
        ("looking", "cannot be called on meta tensors"),
        ("hooked", "has a hook on 3"),
        ("counting", "its forward leaves a value in size"),
        ("of a class", "its output is a Named, and stages send plain tensors only"),
    ],
)
def test_a_model_that_stages_would_compute_differently_is_refused(model: str, reason: str) -> None:
    given = ((torch.randn(4, 6).as_subclass(Named if model == "of a class" else torch.Tensor),), {})
    built = {"one layer": nn.Linear(6, 6), "looking": Looking(), "counting": Counting()}.get(model, mlp())
    if model == "hooked":
        built[3].register_forward_hook(lambda *_: None)  # type: ignore[index]
    with pytest.raises(ScriptError, match=reason):
        cut_model(lone_group(), nn.Module.__call__, built, given, 2, "parameters")


def test_stages_have_even_shares_of_the_parameters() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))
    cutting = cut_model(lone_group(), nn.Module.__call__, model, ((torch.randn(2, 8),), {}), 4, "parameters")
    assert cutting.segments.cuts == ("2", "4", "6")


def test_there_is_one_worker_for_each_stage_of_each_replica() -> None:
    with pytest.raises(UsageError, match=r"stages=3,data=…\) cannot be laid out on 4 workers"):
        Pipeline(stages=3).axes(4)
    assert Pipeline(stages=2).axes(6) == Axes(pipe=2, data=3)


class Picky(nn.Module):
    """Raises for some rows, in a module of one stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().max() > 1e3:
            raise ValueError("too large")
        return self.layer(x)


def skip_a_bad_batch() -> list[Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Picky(), nn.Linear(6, 6), Picky()).double()
    numbers: list[Any] = []
    for step in range(4):
        x = torch.randn(6, 6, dtype=torch.float64)
        if step == 1:
            model[3].weight.data.mul_(1e6)  # type: ignore[operator, union-attr]
        try:
            model(x).sum().backward()
        except ValueError as error:
            numbers.append(str(error))
        if step == 1:
            model[3].weight.data.div_(1e6)  # type: ignore[operator, union-attr]
    return [*numbers, *(p.grad.norm().item() for p in model.parameters() if p.grad is not None)]


def test_an_exception_in_one_stage_is_raised_on_all_workers(pool: Any) -> None:
    expected = skip_a_bad_batch()
    assert expected[0] == "too large"
    for found in pool(2).run(in_stages, {}, skip_a_bad_batch):
        compare(found[1:], expected[1:])
        assert found[0] == expected[0]


def test_a_notice_tells_stages_micro_batches_and_bubble(pool: Any) -> None:
    for notices in pool(2).run(tell, "batch norm"):
        text = " ".join(notices)
        assert "stage 0 from the input" in text
        assert "is not cut into micro-batches, because it has batch norm" in text
        assert "bubble with 2 stages and 1 micro-batches: 50% predicted" in text
        assert "schedule is gpipe" in text


def tell(group: Group, name: str) -> list[str]:
    with staged(group, schedule="1f1b") as notices:
        train(name)
    return list(notices)


def replace_a_layer() -> list[Any]:
    torch.manual_seed(5)
    model, x = mlp().double(), torch.randn(8, 6, dtype=torch.float64)
    numbers = [model(x).sum().item()]
    model[5] = nn.Linear(16, 16).double()  # type: ignore[index]
    loss = model(x).pow(2).mean()
    loss.backward()
    return [*numbers, loss.item(), *(p.grad.norm().item() for p in model.parameters())]


def test_a_layer_that_the_script_replaces_is_used(pool: Any) -> None:
    expected = replace_a_layer()
    for found in pool(2).run(in_stages, {}, replace_a_layer):
        compare(found, expected)


def ask_twice(group: Group) -> str:
    with staged(group):
        model, x = mlp(), torch.randn(4, 6, requires_grad=True)
        with pytest.raises(ScriptError) as refused:
            torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return refused.value.message


def test_gradients_of_gradients_are_refused(pool: Any) -> None:
    for message in pool(2).run(ask_twice):
        assert "gradients of gradients" in message


def train_inside(strategy: Pipeline | None = None) -> list[Any]:
    """Training steps with the loss handed over. Alone, the step is plain Python's."""
    torch.manual_seed(3)
    model = mlp().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = TrainStep(strategy, model, nn.functional.cross_entropy)
    numbers: list[Any] = []
    for rows in (11, 8, 3, 2, 1):
        x, y = torch.randn(rows, 6, dtype=torch.float64), torch.randint(13, (rows,))
        optimizer.zero_grad()
        numbers.append(step(x, y).item())
        numbers.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return [*numbers, torch.rand(1).item(), {k: v.clone() for k, v in model.state_dict().items()}]


def train_inside_stages(group: Group, schedule: str, **arguments: Any) -> tuple[list[Any], int]:
    with staged(group, schedule=schedule, **arguments) as notices:
        return train_inside(notices.strategy), notices.strategy.most_in_flight


@pytest.mark.parametrize(("schedule", "most"), [("1f1b", [2, 1]), ("gpipe", [4, 4]), ("interleaved", [6, 4])])
def test_a_loss_inside_the_last_stage_gives_the_same_numbers(pool: Any, schedule: str, most: list[int]) -> None:
    expected = train_inside()
    found = pool(2).run(train_inside_stages, schedule)
    for numbers, _ in found:
        compare(numbers, expected)
    assert [in_flight for _, in_flight in found] == most


def train_in_replicas(group: Group, schedule: str) -> list[Any]:
    return train_inside_stages(group, schedule, stages=2)[0]


@pytest.mark.parametrize("workers", [4, pytest.param(6, marks=pytest.mark.slow)])  # of 6, two have no row of 2
@pytest.mark.parametrize("schedule", [*map(slow, ("1f1b", "gpipe")), "interleaved"])
def test_replicas_with_the_loss_inside_give_the_same_numbers(pool: Any, schedule: str, workers: int) -> None:
    expected = train_inside()
    for found in pool(workers).run(train_in_replicas, schedule):
        compare(found, expected)


def lose_strangely(group: Group) -> str:
    with staged(group) as notices:
        step = TrainStep(notices.strategy, mlp(), lambda out, y: out.std())
        with pytest.raises(ScriptError) as refused:
            step(torch.randn(8, 6), torch.randn(8))
        return refused.value.message


def test_a_loss_that_is_no_mean_over_rows_is_refused(pool: Any) -> None:
    for message in pool(2).run(lose_strangely):
        assert "neither the mean nor the sum" in message


def lose_weakly(group: Group, kind: str) -> str:
    def mixed(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, y) + 1e-10 * output.std()

    with staged(group) as notices:
        model, x, y = mlp().double(), torch.randn(8, 6, dtype=torch.float64), torch.randint(13, (8,))
        step = TrainStep(notices.strategy, model, mixed if kind == "mixed" else nn.functional.cross_entropy)
        if kind == "ignored":
            step(x, y)
            y[2] = -100
        with pytest.raises(ScriptError) as refused:
            step(x, y)
        return refused.value.message


@pytest.mark.parametrize(("kind", "reason"), [("mixed", "by std"), ("ignored", "some are ignored or weighted")])
def test_a_loss_that_is_nearly_a_mean_over_rows_is_refused(pool: Any, kind: str, reason: str) -> None:
    for message in pool(2).run(lose_weakly, kind):
        assert reason in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("cnn.py", "--epochs 1 --train-size 800 --test-size 200 --dropout 0.2 --log-every 1"),
        ("gpt.py", "--layers 2 --width 16 --heads 2 --tokens 8 --words 90 --train-size 200 --epochs 1 --dropout 0.1"),
    ],
)
@pytest.mark.parametrize("workers", [2, 4])
def test_the_examples_print_what_plain_python_prints(
    zygote: Any, tmp_path: Path, example: str, arguments: str, workers: int
) -> None:
    script = str(Path(__file__).parents[2] / "examples" / example)
    done = subprocess.run([sys.executable, script, *arguments.split()], capture_output=True, text=True, check=True)
    printed: list[bytes] = []
    run = RunSettings(
        script=script, arguments=tuple(arguments.split()), workers=workers, threads=1, strategy="pipeline(stages=2)"
    )
    outcome = launch(
        run,
        zygote=zygote,
        record=tmp_path / "record",
        on_event=lambda event: (
            printed.append(event.data) if isinstance(event, Output) and event.stream == "stdout" else None
        ),
    )
    assert outcome.exit_code == 0, outcome.message
    found, expected = (re.split(r"[ \n]", text) for text in (b"".join(printed).decode(), done.stdout))
    for word, other in zip(found, expected, strict=True):
        is_number = re.fullmatch(r"[\d.]+(e-?\d+)?", other)
        assert float(word) == pytest.approx(float(other), rel=1e-4) if is_number else word == other
