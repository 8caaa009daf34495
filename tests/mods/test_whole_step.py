"""A step as one graph keeps the numbers in every kind of loop that people write.

Without a GPU, a stand-in takes the place of the graph: it computes nothing when it is made, and everything when it is
launched, from the same memory to the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn

from paceline.errors import ScriptError
from paceline.mods import cuda_graphs
from paceline.mods.graphs import graph_choice
from paceline.mods.graphs.graph_choice import GraphChoice
from paceline.mods.graphs.graphed_call import Capture, in_one_pool
from paceline.mods.graphs.promise import State
from paceline.mods.graphs.whole_step import WholeStep

DEVICE = "cpu"  # see `device`
Script = Callable[[], list[Any]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(torch.tanh(self.norm(self.hidden(x))))
        return out


class WithLoss(Net):
    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def batches(count: int, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    for _ in range(count):
        x = torch.randn(size, 6, generator=generator, dtype=torch.float64)
        yield x.to(DEVICE), (x.sum(1) > 0).long().to(DEVICE)


def made(kind: type[nn.Module] = Net) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = kind().double().to(DEVICE)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def played_graphs(stage: Any) -> Capture:
    """Stands for `in_one_pool`: captured functions run at once, and their effects are taken back."""

    def capture(body: Callable[[], Any]) -> Callable[[], None]:
        modes = State.now(DEVICE)
        buffers = [(buffer, buffer.clone()) for module in stage.roots for buffer in module.buffers()]
        with torch.random.fork_rng():
            memory = [None if result is None else result.detach() for result in body()]
        for buffer, before in buffers:
            buffer.data.copy_(before)  # autograd must not see it

        def replay() -> None:
            with stage.inside(), modes.on(DEVICE):  # a graph calls no module, and keeps the modes of its capture
                results = body()
            for place, result in zip(memory, results, strict=True):
                if place is not None:
                    place.copy_(result.detach())

        return replay

    return capture


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DEVICE", request.param)


@pytest.fixture(params=[1 << 26, 0], ids=["at once", "late"])
def wholes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[WholeStep]:
    """All graphs of whole steps, as they are made. Late: as with large outputs."""
    late = request.param
    made: list[WholeStep] = []
    plain = WholeStep.__init__

    def noted(self: WholeStep, *args: Any) -> None:
        plain(self, *args, late=late)
        made.append(self)

    monkeypatch.setattr(WholeStep, "__init__", noted)
    for name in ("grad", "backward"):
        monkeypatch.setattr(torch.autograd, name, getattr(torch.autograd, name))
    monkeypatch.setattr(torch, "compile", torch.compile)
    monkeypatch.setattr(torch.autograd.Function, "apply", torch.autograd.Function.__dict__["apply"])
    if DEVICE == "cpu":
        monkeypatch.setattr(graph_choice, "warming_up", lambda inputs: nullcontext())
        monkeypatch.setattr(graph_choice, "reason_against", lambda *args, **kwargs: "")
    return made


class OnAnyDevice(cuda_graphs.Mod):
    def on_stage(self, stage: Any) -> None:
        self.choice = GraphChoice(stage, in_one_pool if DEVICE == "cuda" else partial(played_graphs, stage))
        stage.subscribe(self)
        self.choice.limits.watch()

    def around_forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        return self._around(plain, is_here=lambda: True)


def played(script: Script, *, graphed: bool) -> tuple[list[Any], list[str]]:
    with staged(lone_group()) as stage:
        if graphed:
            OnAnyDevice("").on_stage(stage)
        torch.manual_seed(1)
        return script(), stage.notices  # type: ignore[attr-defined]


def plain_loop() -> list[Any]:
    model, optimizer = made()
    losses = []
    for x, y in [*batches(9), *batches(1, 3), *batches(4)]:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), (logits.argmax(1) == y).sum().item()]
    model.eval()
    with torch.no_grad():
        losses += [F.cross_entropy(model(x), y).item() for x, y in batches(2)]
    return losses


def dropout() -> list[Any]:
    model, optimizer = made()
    losses = []
    for x, y in batches(12):
        loss = F.cross_entropy(F.dropout(model(x), 0.3), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses += [loss.item(), norm.item()]
    return losses


def accumulation() -> list[Any]:
    model, optimizer = made()
    losses = []
    for number, (x, y) in enumerate(batches(24), 1):
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        losses.append(loss.item())
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def tensors_are_kept() -> list[Any]:
    model, optimizer = made()
    kept, total = [], torch.zeros((), dtype=torch.float64, device=DEVICE)
    for x, y in batches(12):
        output = model(x)
        loss = F.cross_entropy(output, y)
        kept += [output.detach(), output]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss)
        total += loss.detach()
    return [one.norm().item() for one in kept] + [total.item(), torch.stack(kept[2::3]).sum().item()]


def large_results_are_kept() -> list[Any]:
    """A result that is not copied out of the graphs' memory, held while other calls use the graphs."""
    model, optimizer = made()
    kept = []
    for number, (x, y) in enumerate(batches(14)):
        logits = model(x)
        wide = logits.repeat(1 << 12, 2)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        kept.append(wide)
        if number % 4 == 3:
            model(x)  # changes the running statistics
    return [one.norm().item() for one in kept]


def measured_before_backward() -> list[Any]:
    model, optimizer = made()
    found = []
    for x, y in batches(12):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        with torch.no_grad():
            best = logits.max(1)
            accuracy = (best.indices == y).double().mean()
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
        found += [loss.item(), accuracy.item(), best.values.sum().item()]
    return found


def weights_and_scales() -> list[Any]:
    model, optimizer = made()
    found = []
    for number, (x, y) in enumerate(batches(12)):
        weight = torch.full((len(y),), number + 1.0, dtype=torch.float64, device=DEVICE)
        scale = torch.tensor(2.0**number, dtype=torch.float64, device=DEVICE)
        loss = (F.cross_entropy(model(x), y, reduction="none") * weight).mean() * scale
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale * (number + 1))  # type: ignore[union-attr]
        optimizer.step()
        found.append(loss.item())
    return found


def loss_in_the_model() -> list[Any]:
    model, optimizer = made(WithLoss)
    found = []
    for x, y in batches(12):
        outputs = model(x, labels=y)
        optimizer.zero_grad()
        (outputs["loss"] / 2).backward()
        optimizer.step()
        found += [outputs["loss"].item(), outputs["logits"].sum().item()]
    return found


class Pair(Net):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(x)
        return logits, F.cross_entropy(logits, y)


def trainer_with_autocast_and_scaler() -> list[Any]:
    model, optimizer = made(Pair)
    model.float()
    scaler = torch.amp.GradScaler(DEVICE, enabled=False)
    found = []
    for x, y in batches(12):
        for micro in range(2):
            with torch.autocast(DEVICE, torch.bfloat16):
                _, loss = model(x[micro::2].float(), y[micro::2])
                loss = loss / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        found += [round(loss.item() * 2, 2), round(norm.item(), 1)]  # of 8 bits
    return found


def some_steps_differ() -> list[Any]:
    model, optimizer = made()
    found = []
    for number, (x, y) in enumerate(batches(30)):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        if number % 10 == 9:
            found.append(logits.abs().max().item())
        if number == 22:
            loss = loss * 3
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def forgotten_calls() -> list[Any]:
    model, optimizer = made()
    found = []
    for number, (x, y) in enumerate(batches(20)):
        loss = F.cross_entropy(model(x), y)
        if number % 7 == 6:
            continue  # the call has changed the running statistics all the same
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return [*found, model.norm.running_mean.sum().item()]  # type: ignore[operator, union-attr]


def text_of_tensors() -> list[Any]:
    model, optimizer = made()
    found = []
    for x, y in batches(8):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found += [str(loss), f"{loss:.6f}", loss.requires_grad, loss.shape, loss.grad_fn is None, loss.is_leaf]
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
    return found


WHOLE = [
    plain_loop,
    dropout,
    accumulation,
    tensors_are_kept,
    large_results_are_kept,
    measured_before_backward,
    weights_and_scales,
    loss_in_the_model,
    trainer_with_autocast_and_scaler,
    some_steps_differ,
    forgotten_calls,
    text_of_tensors,
]


@pytest.mark.crossed("wholes")
@pytest.mark.parametrize("script", WHOLE)
def test_a_step_is_one_graph_and_the_numbers_stay(script: Script, wholes: list[WholeStep]) -> None:
    plain, _ = played(script, graphed=False)
    found, notices = played(script, graphed=True)
    tolerance = 1e-9 if DEVICE == "cuda" else 1e-13
    numbers = [(a, b) for a, b in zip(plain, found, strict=True) if isinstance(a, (int, float))]
    assert [b for _, b in numbers] == pytest.approx([a for a, _ in numbers], rel=tolerance)
    others = [(a, b) for a, b in zip(plain, found, strict=True) if not isinstance(a, (int, float))]
    assert [a for a, _ in others] == [b for _, b in others]
    assert len(wholes) == 1
    assert wholes[0].launches >= 4
    assert not notices


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


def _loop(loss_of: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]) -> Script:
    def script() -> list[Any]:
        model, optimizer = made()
        found = []
        for x, y in batches(12):
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    return script


def _read(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    return loss * 2 if loss.item() > 0.5 else loss


def _moved(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    logits.to("meta")  # as `.cpu()` on a GPU
    return F.cross_entropy(logits, y)


def _in_place(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    loss += 0.5
    return loss


IN_PARTS = {
    "read before backward": _loop(_read),
    "moved": _loop(_moved),
    "changed in place": _loop(_in_place),
    "a penalty on weights": _loop(lambda m, x, y: F.cross_entropy(m(x), y) + sum(p.norm() for p in m.parameters())),
    "a function of autograd": _loop(lambda m, x, y: F.cross_entropy(Doubled.apply(m(x)), y)),
    "two calls": _loop(lambda m, x, y: F.cross_entropy(m(x), y) + F.cross_entropy(m(-x), y)),
    "a call of its own output": _loop(lambda m, x, y: F.cross_entropy(m(F.pad(m(x), (1, 1))), y)),
    "a compiled loss": _loop(lambda m, x, y: torch.compile(F.cross_entropy, backend="eager")(m(x), y)),
}


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # on a GPU, other graphs take over: test_cuda_graphs
@pytest.mark.crossed("wholes")
@pytest.mark.parametrize("name", IN_PARTS)
def test_what_cannot_be_one_graph_is_computed_as_before(name: str, wholes: list[WholeStep]) -> None:
    plain, _ = played(IN_PARTS[name], graphed=False)
    found, _ = played(IN_PARTS[name], graphed=True)
    assert found == pytest.approx(plain, rel=1e-13)
    assert not any(whole.launches for whole in wholes)


def test_a_script_that_changes_its_ways_gives_up_the_graph(wholes: list[WholeStep]) -> None:
    def script() -> list[Any]:
        model, optimizer = made()
        found = []
        for number, (x, y) in enumerate(batches(30)):
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            if number > 8:
                found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    plain, _ = played(script, graphed=False)
    found, _ = played(script, graphed=True)
    assert found == pytest.approx(plain, rel=1e-9)
    assert 1 <= wholes[0].launches <= 6
    assert wholes[0].misses <= 8


@pytest.mark.parametrize("wholes", [0], ids=["late"], indirect=True)
def test_a_weight_changed_before_a_late_forward_is_an_error(wholes: list[WholeStep]) -> None:
    def script() -> list[Any]:
        model, optimizer = made()
        for number, (x, y) in enumerate(batches(12)):
            loss = F.cross_entropy(model(x), y)
            if number == 8:
                with torch.no_grad():
                    model.out.bias += 1.0  # type: ignore[operator, union-attr]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return []

    with pytest.raises(ScriptError, match="a weight is changed in place"):
        played(script, graphed=True)
