"""Sharded: same numbers as plain Python, whole files, and what it refuses. Real workers; float64, plain SGD."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import PlainPython

from paceline.launch import Output, Zygote, launch
from paceline.record.schema import Outcome
from paceline.settings import RunSettings
from paceline.units import parse_size

EXAMPLES = Path(__file__).parents[2] / "examples"

BEGIN = """
import copy, sys, torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)

class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)
    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))

def show(*numbers):
    print(*(f"{float(n):.9e}" for n in numbers))

x, y = torch.randn(12, 5), torch.randn(12, 2)
"""

MLP = """
model = nn.Sequential(nn.Linear(5, 7), *(Block(7) for _ in range(3)), nn.Linear(7, 2))
held = list(model.parameters())
optimizer = torch.optim.SGD(held, lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
average = [p.detach().clone() for p in held]
for step in range(4):
    fit = F.mse_loss(model(x), y)
    penalty = sum(p.pow(2).sum() for p in model.parameters()) if step % 2 else 0.1 * sum(p.abs().sum() for p in held)
    loss = fit + 1e-2 * penalty
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(held if step % 2 else model.parameters(), 0.4)
    show(loss.item(), norm, held[0].grad.abs().max(), sum(g.grad.norm() ** 2 for g in held))
    optimizer.step()
    schedule.step()
    with torch.no_grad():
        for a, p in zip(average, held):
            a.mul_(0.9).add_(p, alpha=0.1)
        model[-1].bias.data[0] += 0.01
        held[0].clamp_(-0.4, 0.4)
show(*(a.sum() for a in average))
print(model, held[1], model[0].weight.shape, len(model[0].weight), model[0].weight[1, 2].item())
print(model[-1].bias.detach().numpy().round(9), f"{model[0].weight.mean().item():.9f}")
twin = copy.deepcopy(model)
show(*(p.sum() for p in twin.parameters()), model.eval()(x).sum(), twin.eval()(x).sum())
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "twin": model}, "saved.pt")
"""

GPT = """
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(11, 6), nn.Embedding(4, 6)
        self.blocks = nn.ModuleList(Block(6, 0.2) for _ in range(2))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.word.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
    def forward(self, ids):
        x = self.word(ids) + self.place(torch.arange(4))
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale

ids = torch.randint(0, 11, (9, 5))
model = GPT()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
for step in range(4):
    optimizer.zero_grad()
    for part in ids.split(5):
        loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()) / 2
        loss.backward()
        show(loss, nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    optimizer.step()
model.blocks[0].requires_grad_(False)
for step in range(2):
    optimizer.zero_grad()
    F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    print([p.grad is None for p in model.parameters()])
torch.save(model.state_dict(), "saved.pt")
"""

CNN = """
class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        layer = lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layers = nn.Sequential(layer(), layer())
        self.head = nn.Linear(4, 3)
    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))

images, labels = torch.randn(10, 1, 6, 6), torch.randint(0, 3, (10,))
model = CNN()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        show(loss, model(images).sum())
    model.train()
torch.save(model.state_dict(), "saved.pt")
"""

RESUME = """
import os
def made():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
def train(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        show(loss)
model, optimizer = made()
train(model, optimizer, 3)
torch.save([model.state_dict(), optimizer.state_dict()], "saved.pt")
best = copy.deepcopy(model.state_dict())
train(model, optimizer, 3)
model.load_state_dict(best)  # of sharded tensors
optimizer.load_state_dict(torch.load("saved.pt")[1])  # whole, after the first call
train(model, optimizer, 3)
again, other = made()
weights, state = torch.load("saved.pt")
again.load_state_dict(weights)  # whole, before the first call
other.load_state_dict(state)
train(again, other, 3)
again.load_state_dict(weights)  # whole, after the first call
train(again, other, 1)
"""

ASKED = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, model, x, *parameters):
        ctx.model, ctx.parameters = model, parameters
        ctx.save_for_backward(x)
        with torch.no_grad():
            return model(x) * 2
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            found = torch.autograd.grad(ctx.model(x), ctx.parameters, 2 * grad)
        return None, None, *found

class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.often, self.seldom = nn.Linear(5, 6), nn.Linear(6, 2), nn.Linear(6, 2, bias=False)
        self.never = nn.Linear(6, 2)
    def forward(self, x):
        h = torch.tanh(self.first(x))
        out = self.often(h)
        rows = (x[:, 0] > x0).nonzero().flatten()
        return out if not len(rows) else out.index_add(0, rows, self.seldom(h[rows]))

x0 = x[:, 0].max() - 1e-3  # one row: of one worker
model = Choosing()
params = [p for name, p in model.named_parameters() if "never" not in name]
for step in range(4):
    fit = F.mse_loss(model(x), y)
    loss = fit + (1e-2 * sum(p.pow(2).sum() for p in params) if step % 2 else 0.0)
    grads = torch.autograd.grad(loss, params)
    show(loss.item(), *(g.norm() for g in grads), grads[0][1, 2])
    with torch.no_grad():
        for p, g in zip(params, grads):
            p -= 0.1 * g
some = torch.autograd.grad(model(x).sum(), [model.first.weight, *model.never.parameters()], allow_unused=True)
print([g is None for g in some])
for step in range(3):
    loss = F.mse_loss(Scaled.apply(model, x, *params), y)
    loss.backward()
    show(loss.item(), *(p.grad.norm() for p in params))
    with torch.no_grad():
        for p in params:
            p -= 0.05 * p.grad
            p.grad = None
hooked = []
model.first.register_forward_hook(lambda module, args, output: hooked.append(float(output.sum())))
model(x)
show(*hooked)
print(len(model.first._forward_hooks), len(model._forward_hooks), len(model._forward_pre_hooks))
torch.save(model.state_dict(), "saved.pt")
"""


class Played:
    """What a script left, plain or on workers."""

    def __init__(self, out: str, folder: Path, outcome: Outcome | None = None) -> None:
        self.out, self.folder, self.outcome = out, folder, outcome

    def saved(self) -> Any:
        return torch.load(self.folder / "saved.pt", weights_only=False)


def alone(plain: PlainPython, script: Path, *arguments: str) -> Played:
    folder = script.parent / "plain"
    folder.mkdir()
    return Played(plain.printed(folder, script, *arguments), folder)


def sharded(
    zygote: Zygote, patch: pytest.MonkeyPatch, script: Path, workers: int, *arguments: str, how: str = "sharded"
) -> Played:
    folder = script.parent / f"on{workers}"
    folder.mkdir()
    patch.chdir(folder)
    said = {"stdout": b"", "stderr": b""}

    def on_event(event: object) -> None:
        if isinstance(event, Output):
            said[event.stream] += event.data

    run = RunSettings(script=str(script), arguments=arguments, workers=workers, strategy=how, threads=1)
    outcome = launch(run, zygote=zygote, record=script.parent / f"record{workers}", on_event=on_event)
    return Played(said["stdout"].decode(), folder, outcome)


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(BEGIN + text)
        return path

    return write


def compare(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.nn.Module):
        assert type(found).__name__ == type(expected).__name__
        compare(found.state_dict(), expected.state_dict())
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            compare(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, torch.Tensor):
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    else:
        assert found == expected


SCRIPTS = {"mlp": MLP, "gpt": GPT, "cnn": CNN, "resume": RESUME, "asked": ASKED}


def check(
    script: Any,
    plain: PlainPython,
    zygote: Zygote,
    patch: pytest.MonkeyPatch,
    name: str,
    workers: int,
    how: str,
    parts: int = 0,
) -> None:
    """`parts`: of each copy of the model."""
    path = script(SCRIPTS[name])
    if name == "mlp":  # a class of the script cannot be loaded here
        path.write_text(path.read_text().replace(', "twin": model', ""))
    expected, found = alone(plain, path), sharded(zygote, patch, path, workers, how=how)
    assert found.outcome is not None
    assert found.outcome.exit_code == 0, found.outcome.message
    assert found.out == expected.out
    whole = [notice for notice in found.outcome.notices if "not computed in slices" in notice]
    assert not whole or name == "asked"  # whose modules mix samples, or count calls
    compare(found.saved(), expected.saved())
    said = [re.match(r"Sharded: a worker keeps (.*) of (.*) of the parameters", n) for n in found.outcome.notices]
    own, total = next([parse_size(text.replace(",", "")) for text in kept.groups()] for kept in said if kept)
    assert own <= total * (0.05 + 2 / (1 + (parts or workers)))  # rank 0 may have one row more of each tensor


SLOWLY = [pytest.param(*each, marks=pytest.mark.slow) for each in (("mlp", 1), ("mlp", 2), ("cnn", 2), ("resume", 2))]


@pytest.mark.parametrize(("name", "workers"), [("gpt", 2), ("asked", 2), *SLOWLY])
def test_numbers_and_files_are_plain_pythons(
    script: Any, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    check(script, plain, zygote, monkeypatch, name, workers, "sharded")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_numbers_and_files_are_plain_pythons_on_more_workers(
    script: Any, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    check(script, plain, zygote, monkeypatch, name, workers, "sharded")


@pytest.mark.slow
def test_each_of_two_copies_is_sharded(
    script: Any, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(script, plain, zygote, monkeypatch, "mlp", 4, "mesh(data=2,shard=2)", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_numbers_and_files_are_plain_pythons_on_two_axes(
    script: Any, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check(script, plain, zygote, monkeypatch, name, 4, "sharded(replicas=2)", 2)


@pytest.mark.slow
def test_parameters_in_host_memory(
    script: Any, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(script, plain, zygote, monkeypatch, "mlp", 2, "sharded(offload=true)")


REFUSED = {
    "gradients of gradients": "torch.autograd.grad(model(x).sum(), x.requires_grad_(), create_graph=True)",
    "batched gradients": "torch.autograd.grad(model(x), list(model.parameters()), y[None], is_grads_batched=True)",
    "Worker 1 writes other values into sharded weights": """
import os
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    if step == 4:
        model[0].weight.grad += 0.1 * (os.getpid() % 1000)
    optimizer.step()
""",
    "writes other values into sharded": """
import os
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
model[2].weight.data = model[2].weight.data + torch.full((2, 7), 1e-2 * (os.getpid() % 1000))
""",
    "hooks": "model(x); model[0].weight.register_hook(print); model(x).sum().backward()",
    "inside its forward": "model.register_forward_pre_hook(lambda m, _: m[0].weight.data.mul_(2)); model(x)",
}


@pytest.mark.parametrize("what", ["gradients of gradients", "Worker 1 writes other values into sharded weights"])
def test_what_cannot_work_is_refused(script: Any, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = script("model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))\n" + REFUSED[what])
    found = sharded(zygote, monkeypatch, path, 2)
    assert found.outcome is not None
    assert found.outcome.exit_code != 0
    assert what in found.outcome.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    ["inside its forward", "batched gradients", "hooks", "writes other values into sharded weights or gradients"],
)
def test_more_that_cannot_work_is_refused(
    script: Any, zygote: Zygote, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    test_what_cannot_work_is_refused(script, zygote, monkeypatch, what)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cnn.py", "--train-size 256 --test-size 128 --epochs 1 --batch-size 64"),
        (
            "gpt.py",
            "--layers 2 --width 32 --heads 2 --tokens 16 --words 100 --batch-size 16 --train-size 64 --test-size 32 "
            "--epochs 1 --log-every 1",
        ),
    ],
)
def test_examples_print_what_plain_python_prints(
    name: str, arguments: str, tmp_path: Path, plain: PlainPython, zygote: Zygote, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in EXAMPLES.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    path, given = tmp_path / name, arguments.split()
    expected, found = alone(plain, path, *given), sharded(zygote, monkeypatch, path, 2, *given)
    assert found.outcome is not None
    assert found.outcome.exit_code == 0, found.outcome.message
    numbers = [[float(n) for n in re.findall(r"\d+\.?\d*(?:e-?\d+)?", text)] for text in (found.out, expected.out)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-3)
