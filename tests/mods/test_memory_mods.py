"""Mods that take time for memory: the same gradients, and less that is kept for them."""

from __future__ import annotations

import copy
import io
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.comm.group import Group
from paceline.errors import ScriptError, UsageError
from paceline.mods import catalog
from paceline.script.repeated_blocks import repeated_blocks

SAMPLES = 14


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine take longer than all that is computed here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    """With all that a second computation could get wrong: dropout, Python's random numbers, statistics, counters."""

    def __init__(self, width: int, dropout: float, norm: bool, stateful: bool | str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)
        self.register_buffer("counted", torch.zeros((), dtype=torch.float64))
        self.stateful, self.seen = stateful, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        if self.stateful:
            self.counted += 1
            self.seen += 1
            drawn = 0.5 if self.stateful == "counting" else random.random()
            y = y * (1 + 0.1 * drawn + 0.01 * self.counted.clone() + 0.02 * self.seen)
        return x + self.dropout(y)


class Net(nn.Module):
    """Some blocks; gives scores, or with labels the loss beside them."""

    def __init__(
        self, dropout: float = 0.0, norm: bool = False, stateful: bool | str = False, width: int = 6, depth: int = 4
    ) -> None:
        super().__init__()
        self.into = nn.Linear(4, width)
        self.blocks = nn.ModuleList(Block(width, dropout, norm, stateful) for _ in range(depth))
        self.out = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        x = self.out(x)
        return x if labels is None else {"scores": x, "loss": F.cross_entropy(x, labels), "note": "as it is"}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(SAMPLES, 4, dtype=torch.float64), torch.randint(3, (SAMPLES,))


def trained(group: Group, mods: list[str], how: dict[str, Any], own_loss: bool = False) -> Any:
    """Losses of some steps under plain SGD in float64; what is left in the model; and what was told."""
    how = dict(how)
    with staged(group, mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        torch.manual_seed(1)
        random.seed(1)
        model = Net(**how).double()
        x, y = data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(3):
            loss = model(x, labels=y)["loss"] if own_loss else F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(float(model(x).sum()))
        left = {name: value.clone() for name, value in model.state_dict().items()}
        left["seen"] = torch.tensor([block.seen for block in model.blocks])
        left["drawn"] = torch.tensor([random.random(), float(torch.rand(()))])
        return losses, left, stage.notices  # type: ignore[attr-defined]


def agree(found: Any, wanted: Any, *, rtol: float = 1e-10) -> None:
    assert found[0] == pytest.approx(wanted[0], rel=rtol)
    for name, value in wanted[1].items():
        torch.testing.assert_close(found[1][name], value, rtol=rtol, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


HOW: list[dict[str, Any]] = [{}, {"dropout": 0.3}, {"norm": True}, {"dropout": 0.3, "norm": True, "stateful": True}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_checkpointing_changes_no_number_at_all(how: dict[str, Any]) -> None:
    found, plainly = trained(lone_group(), ["checkpointing"], how), trained(lone_group(), [], how)
    agree(found, plainly, rtol=0.0)
    assert "checkpointing: 4 × Block of Net" in found[2]


@pytest.mark.parametrize("how", HOW[:3], ids=str)
def test_checkpointing_on_two_workers(pool: Any, how: dict[str, Any]) -> None:
    plainly = pool(2).run(trained, [], how)
    for found, wanted in zip(pool(2).run(trained, ["checkpointing"], how), plainly, strict=True):
        agree(found, wanted)


WITH_STATE: list[dict[str, Any]] = [{}, {"dropout": 0.3}, {"dropout": 0.3, "stateful": "counting"}]


@pytest.mark.crossed("how")
@pytest.mark.parametrize("own_loss", [False, True])
@pytest.mark.parametrize("mods", [["accumulate=2"], ["accumulate=3"], ["checkpointing", "accumulate=40"]], ids=str)
@pytest.mark.parametrize("how", WITH_STATE, ids=str)
def test_accumulating_gives_the_numbers_of_the_whole_batch(own_loss: bool, mods: list[str], how: Any) -> None:
    """With the dropout of the whole batch, and the counters of one call."""
    agree(trained(lone_group(), mods, how, own_loss), trained(lone_group(), [], how, own_loss))


@pytest.mark.crossed("own_loss")
@pytest.mark.parametrize("mods", [["accumulate=3"], ["accumulate=9"], ["accumulate=2", "checkpointing"]], ids=str)
@pytest.mark.parametrize("own_loss", [False, True])
@pytest.mark.parametrize("how", WITH_STATE, ids=str)
def test_accumulating_on_two_workers(pool: Any, mods: list[str], own_loss: bool, how: Any) -> None:
    plainly = trained(lone_group(), [], how, own_loss)
    for found in pool(2).run(trained, mods, how, own_loss):
        agree(found, plainly)


def test_accumulating_with_a_batch_norm_that_sees_all_workers(pool: Any) -> None:
    how = {"norm": True}
    alone = trained(lone_group(), ["accumulate=2"], {"norm": True})
    for found in pool(2).run(trained, ["accumulate=2"], how):
        assert found[0][0] != pytest.approx(alone[0][0], rel=1e-9), "other rows meet in a micro-batch"
        assert int(found[1]["blocks.0.norm.num_batches_tracked"]) == 6
        assert any("sees each of the 2 micro-batches" in notice for notice in found[2])


def by_hand(parts: int, how: dict[str, Any]) -> Any:
    """Micro-batches as people write them, with nothing computed twice."""
    torch.manual_seed(1)
    random.seed(1)
    model = Net(**how).double()
    x, y = data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        sizes = [SAMPLES * (i + 1) // parts - SAMPLES * i // parts for i in range(parts)]
        loss = F.cross_entropy(torch.cat([model(piece) for piece in x.split(sizes)]), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(float(model(x).sum()))
    left = {name: value.clone() for name, value in model.state_dict().items()}
    left["seen"] = torch.tensor([block.seen for block in model.blocks])
    return losses, left


class Attending(nn.Module):
    """With dropout in attention and outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(16, 3 * 64), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (2, 32)).transpose(1, 2) for t in self.into(x).split(64, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(F.dropout(y, 0.2)).mean(1)


def attended(mods: list[str], device: str) -> list[float]:
    with staged(lone_group(), mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        torch.manual_seed(3)
        model = Attending().to(device)
        x, y = torch.randn(12, 128, 16, device=device), torch.randint(3, (12,), device=device)
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
        for _ in range(5):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [*losses, torch.rand((), device=device).item()]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.slow])])
@pytest.mark.parametrize("parts", [3, 5])
def test_attention_in_micro_batches_has_the_dropout_of_the_whole_batch(device: str, parts: int) -> None:
    assert attended([f"accumulate={parts}"], device) == pytest.approx(attended([], device), rel=2e-5)


@pytest.mark.parametrize(
    "mods", [["accumulate=3"], ["accumulate=3", "checkpointing"], ["checkpointing", "accumulate=3"]]
)
def test_batch_norm_sees_a_micro_batch_as_in_the_loop_that_people_write(mods: list[str]) -> None:
    agree(trained(lone_group(), mods, {"norm": True}), by_hand(3, {"norm": True}))


class Alive(TorchDispatchMode):
    """Bytes of all tensors that were made under it and are still there, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self._known:
                    self._known.add(key)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
        self.most = max(self.most, self.now)
        return out

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def most_alive(mods: list[str]) -> int:
    with staged(lone_group(), mods=tuple(mods)) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        model = Net(depth=8, width=16)
        x = torch.randn(512, 4)
        model(x).sum().backward()  # gradients are there, and what is to be known of the model is known
        with Alive() as alive:
            model(x).sum().backward()
        return alive.most


def test_less_is_kept() -> None:
    plainly = most_alive([])
    blocks = most_alive(["checkpointing"])
    fourth = most_alive(["accumulate=4"])
    both = most_alive(["checkpointing", "accumulate=4"])
    assert blocks < 0.4 * plainly
    assert fourth < 0.4 * plainly
    assert both < 0.6 * min(blocks, fourth)


class Odd(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 3), kind
        self.penalty = torch.zeros(())

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        if self.kind == "attribute":
            self.penalty = y.pow(2).mean()
        return {
            "pairs": lambda: y @ y.T,
            "moment": lambda: y.std(0),
            "weak": lambda: y + 1e-6 * y.mean(0),
            "hidden": lambda: (
                (y - y.mean(0)).masked_fill(torch.ones_like(y, dtype=torch.bool), float("-inf")).softmax(0)
            ),
            "half": lambda: y.bfloat16() + 1e-3 * y.bfloat16().mean(0),
        }.get(self.kind, lambda: y)()


@pytest.mark.parametrize("kind", ["pairs", "moment", "attribute", "weak", "hidden", "half"])
def test_what_cannot_be_computed_in_micro_batches_is_refused(kind: str) -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["accumulate=2"])[0]).on_stage(stage)
        model = Odd(kind)
        with pytest.raises(ScriptError, match="cannot be computed in micro-batches") as error:
            model(torch.randn(6, 4))
        assert "--mod checkpointing" in error.value.advice


def test_a_refusal_names_the_operation_and_the_line() -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["accumulate=2"])[0]).on_stage(stage)
        with pytest.raises(ScriptError, match=r"depends on other samples, .*by add \(test_memory_mods.py:\d+\)"):
            Odd("weak")(torch.randn(6, 4))


class Lossy(nn.Module):
    """Returns a loss of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(4, 3), kind

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.linear(x)
        if self.kind == "sum":
            return F.cross_entropy(scores, y, reduction="sum")
        loss = F.cross_entropy(scores, y)
        return loss + scores.square().mean() if self.kind == "and more" else loss


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[Any]:
    model.zero_grad()
    loss = model(x, y)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def losses_of(group: Group, kind: str, mods: list[str]) -> list[Any]:
    torch.manual_seed(2)
    model, x = Lossy(kind).double(), torch.randn(6, 4, dtype=torch.float64)
    targets = [0, 1, 2, 0, 1, 2], [0, -100, -100, 0, 1, 2], [-100, -100, -100, 0, 1, 2], [-100] * 5 + [1]
    with staged(group) as stage:
        for asked in catalog.parse(mods):
            catalog.load(asked).on_stage(stage)
        return [loss_of(model, x, torch.tensor(y)) for y in targets]


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_a_loss_of_the_models_own_is_the_mean_over_the_targets_that_count(pool: Any, kind: str) -> None:
    wanted = losses_of(lone_group(), kind, [])
    torch.testing.assert_close(losses_of(lone_group(), kind, ["accumulate=2"]), wanted)
    for found in pool(2).run(losses_of, kind, ["accumulate=2"]):
        torch.testing.assert_close(found, wanted)


def test_a_mean_over_what_counts_and_another_term_are_refused_when_a_target_is_ignored() -> None:
    model, x, y = Lossy("and more").double(), torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    plainly = loss_of(model, x, y)
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse(["accumulate=2"])[0]).on_stage(stage)
        torch.testing.assert_close(loss_of(model, x, y), plainly)
        y[1] = -100
        with pytest.raises(ScriptError, match="cannot be computed in micro-batches: it adds another term"):
            model(x, y)


@pytest.mark.parametrize("mod", ["checkpointing", "accumulate=2"])
def test_a_model_can_be_copied_saved_and_walked_back_twice(mod: str) -> None:
    with staged(lone_group()) as stage:
        catalog.load(catalog.parse([mod])[0]).on_stage(stage)
        model, (x, y) = Net(norm=True).double(), data()
        loss = F.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        loss.backward()
        for grad, p in zip(once, model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, 2 * grad)
        twin = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        with torch.no_grad():
            for p in twin.blocks.parameters():
                p.zero_()
        assert not torch.equal(twin(x), model(x)), "a copy is a model of its own"


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (Net(), ["Block"] * 4),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3), ["TransformerEncoderLayer"] * 3),
        (
            nn.Sequential(nn.Sequential(Block(4, 0, True, False), Block(4, 0, True, False)), nn.Linear(4, 2)),
            ["Block"] * 2,
        ),
        (nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))), ["Sequential"] * 3),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), []),
        (nn.Linear(4, 2), []),
    ],
)
def test_repeated_blocks_are_found(model: nn.Module, found: list[str]) -> None:
    assert [type(block).__name__ for block in repeated_blocks(model)] == found


def test_a_model_without_blocks_is_left_as_it_is_and_that_is_said() -> None:
    with staged(lone_group()) as stage:
        mod = catalog.load(catalog.parse(["checkpointing"])[0])
        mod.on_stage(stage)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        model(torch.randn(3, 4)).sum().backward()
        assert mod.idle() == "Sequential has no repeated blocks."


@pytest.mark.parametrize("mods", [["accumulate=2", "cuda_graphs"], ["checkpointing", "compile"]], ids=str)
def test_what_excludes_each_other_is_refused(mods: list[str]) -> None:
    for order in (mods, mods[::-1]):
        with pytest.raises(UsageError, match="exclude each other"):
            catalog.parse(order)
