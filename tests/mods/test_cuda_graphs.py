"""CUDA graphs keep the numbers in every kind of loop that people write. Needs a GPU, but for the last test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import nn

from paceline.errors import ScriptError
from paceline.mods import catalog
from paceline.mods.graphs.graphed_call import GraphedCall
from paceline.mods.graphs.graphed_step import GraphedStep
from paceline.mods.graphs.whole_step import WholeStep

Script = Callable[[], list[float]]


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(8 * 16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(F.relu(self.norm(self.conv(x))).flatten(1)))


def batches(sizes: list[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    for size in sizes:
        x = torch.randn(size, 3, 4, 4, generator=generator)
        yield x.cuda(), (x.mean((1, 2, 3)) > 0).long().cuda()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often graphs were used."""
    count = {"calls": 0, "steps": 0}
    forward, launch, capture = GraphedCall.forward, WholeStep.launch, GraphedStep._capture

    def counted(self: GraphedCall, tensors: Any) -> Any:
        count["calls"] += 1
        return forward(self, tensors)

    def launched(self: WholeStep, *args: Any) -> None:
        count["calls"] += 1
        launch(self, *args)

    def captured(self: GraphedStep, *args: Any) -> bool:
        count["steps"] += 1
        return capture(self, *args)

    monkeypatch.setattr(GraphedCall, "forward", counted)
    monkeypatch.setattr(WholeStep, "launch", launched)
    monkeypatch.setattr(GraphedStep, "_capture", captured)
    return count


def played(script: Script, mods: tuple[str, ...], **run: Any) -> tuple[list[float], list[str]]:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    grad, backward, compile = torch.autograd.grad, torch.autograd.backward, torch.compile
    apply = torch.autograd.Function.__dict__["apply"]
    try:
        with staged(lone_group(), mods=mods, **run) as stage:
            for asked in catalog.parse(mods):
                catalog.load(asked).on_stage(stage)
            torch.manual_seed(1)
            return script(), stage.notices  # type: ignore[attr-defined]
    finally:
        torch.autograd.grad, torch.autograd.backward, torch.compile = grad, backward, compile
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]


def agree(script: Script, mods: tuple[str, ...] = ("cuda_graphs",), tolerance: float = 1e-4) -> list[str]:
    plain, _ = played(script, ())
    graphed, notices = played(script, mods)
    assert graphed == pytest.approx(plain, rel=tolerance)
    return notices


def plain_loop() -> list[float]:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    losses = []
    for x, y in batches([16] * 12 + [5] + [16] * 4 + [5]):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses += [F.cross_entropy(model(x), y).item() for x, y in batches([16, 5])]
    return losses


def schedule_and_clipping() -> list[float]:
    model = Net(dropout=0.3).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    numbers = []
    for x, y in batches([16] * 14):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        numbers += [loss.item(), norm.item()]
    return numbers


def accumulation() -> list[float]:
    model = Net().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for number, (x, y) in enumerate(batches([16] * 24), 1):
        loss = F.cross_entropy(model(x), y) / 3
        loss.backward()
        losses.append(loss.item())
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def two_calls_before_backward() -> list[float]:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for (x, y), (z, w) in zip(batches([16] * 12), batches([16] * 12), strict=True):
        loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(-z), w)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def outputs_are_kept() -> list[float]:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kept = []
    for x, y in batches([16] * 10):
        output = model(x)
        kept.append(output.detach())
        optimizer.zero_grad()
        F.cross_entropy(output, y).backward()
        optimizer.step()
    return [float(output.norm()) for output in kept]


def chained_models() -> list[float]:
    maker, judge = nn.Sequential(nn.Linear(6, 48), nn.Unflatten(1, (3, 4, 4))).cuda(), Net().cuda()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.02) for m in (maker, judge)]
    losses = []
    for _, y in batches([16] * 10):
        noise = torch.randn(16, 6, device="cuda")
        loss = F.cross_entropy(judge(maker(noise)), y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def gradients_by_name() -> list[float]:
    model = Net().cuda()
    parameters = list(model.parameters())
    losses = []
    for x, y in batches([16] * 10):
        loss = F.cross_entropy(model(x), y)
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p -= 0.05 * g
        losses.append(loss.item())
    return losses


def hooks_on_parameters() -> list[float]:
    model = Net().cuda()
    model.out.weight.register_hook(lambda g: g * 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for x, y in batches([16] * 10):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def state_is_loaded_in_between() -> list[float]:
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, saved = [], None
    for number, (x, y) in enumerate(batches([16] * 20)):
        if number == 8:
            saved = ({k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict())
            saved = torch.utils._pytree.tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, saved)
        if number == 14:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


SCRIPTS = [
    plain_loop,
    schedule_and_clipping,
    accumulation,
    two_calls_before_backward,
    outputs_are_kept,
    chained_models,
    state_is_loaded_in_between,
    hooks_on_parameters,
    gradients_by_name,
]
ODD = (accumulation, gradients_by_name)  # gradients lie elsewhere at every step, or there is no optimizer


@pytest.mark.gpu
@pytest.mark.parametrize("script", SCRIPTS)
def test_numbers_stay_and_graphs_are_used(script: Script, replays: dict[str, int]) -> None:
    agree(script)
    assert replays["calls"] >= 4
    assert replays["steps"] >= 1 or script in ODD


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("others", [("channels_last",), ("compile",), ("precision=bf16",), ("fused_optimizer",)])
def test_composes_with_other_mods(others: tuple[str, ...], replays: dict[str, int]) -> None:
    graphed, _ = played(plain_loop, ("cuda_graphs", *others))
    alone, _ = played(plain_loop, others)
    assert graphed == pytest.approx(alone, rel=0.02 if others == ("precision=bf16",) else 1e-3)
    assert replays["calls"] >= 4


class Looking(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * (2.0 if x.sum().item() > 0 else 1.0))


class Aux(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        self.aux = output.square().mean()
        return output


def looped(model: nn.Module, **options: Any) -> Script:
    def script() -> list[float]:
        torch.manual_seed(3)
        net = type(model)().cuda()
        if options.get("hook"):
            net.conv.register_forward_hook(lambda m, i, o: o * 1.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        losses, kept = [], []
        for x, y in batches([16] * 10):
            loss = F.cross_entropy(net(x), y) + getattr(net, "aux", 0.0)
            optimizer.zero_grad()
            loss.backward(retain_graph=bool(options.get("twice")))
            if options.get("twice"):
                loss.backward()
            if options.get("keep"):
                kept.append(net.out.weight.grad)
            optimizer.step()
            losses.append(loss.item())
        return losses

    return script


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (looped(Looking()), "Looking runs without CUDA graphs"),
        (looped(Aux()), "leaves a tensor"),
        (looped(Net(), hook=True), "has hooks"),
    ],
)
def test_what_cannot_be_captured_runs_as_before(script: Script, said: str, replays: dict[str, int]) -> None:
    notices = agree(script)
    assert any(said in notice for notice in notices)
    assert not replays["calls"]


@pytest.mark.gpu
@pytest.mark.parametrize("option", ["twice", "keep"])
def test_what_a_graph_would_get_wrong_is_an_error(option: str) -> None:
    with pytest.raises(ScriptError, match=r"twice through|keeps a gradient"):
        played(looped(Net(), **{option: True}), ("cuda_graphs",))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_so_and_changes_nothing() -> None:
    def script() -> list[float]:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(6):
            loss = F.cross_entropy(model(torch.randn(8, 3, 4, 4)), torch.randint(4, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    graphed, notices = played(script, ("cuda_graphs",))
    assert graphed == played(script, ())[0]
    assert any("no GPU" in notice for notice in notices)
