"""Random modules, and the short training program that each is used in: everything follows from one integer.

    made = make(17)            # a module, and what is known of it
    numbers = play(made)       # all that a script could print after training it

A module is a chain of steps: layers, views, indexing, draws, buffers, attributes, side effects. Half of the modules
also mix samples in some step, hidden in some way. A module's parameters come from the seed, its batches from a
generator of their own, and its draws from the global streams, which `play` seeds.

`must_refuse` says that the module mixes samples in at least one call of the program, however weakly, so that this
module must not be split as a whole. A module that mixes samples under a condition on values is judged by numbers only.
"""

from __future__ import annotations

import io
import math
import random
import tempfile
from collections.abc import Callable
from contextlib import chdir, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional

WIDTH, TIME, CLASSES = 6, 3, 5
IGNORED = -100
RATE = 0.05
LOG: list[float] = []  # as a global of the script, to which a forward appends
Step = Callable[["Part", torch.Tensor, torch.Tensor], torch.Tensor]
Mixing = Callable[[torch.Tensor], torch.Tensor]


class Part(nn.Module):
    """A chain of steps. A step gets the part, the tensor and the targets; state is in attributes of the part."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(self, x, target)
        return x


class Whole(Part):
    """The outermost module: the chain, then an output or a loss."""

    finish: Callable[[Part, torch.Tensor, torch.Tensor], Any]
    autocast = False

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16) if self.autocast else nullcontext():
            return self.finish(self, super().forward(x, target), target)


class Meter:
    """The usual average of a loss, in a Python object."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, value: float, count: int) -> None:
        self.total += value * count
        self.count += count


@dataclass
class Made:
    """A module and its program."""

    seed: int
    module: Whole
    words: list[str]  # what the module does, step by step
    layout: str  # of the first argument: BF, BTF or TBF
    bf16: bool
    around: bool  # autocast in the script, around the call
    evaluations: int
    sizes: list[int]  # rows of each batch, evaluations first
    ignored: bool  # some targets are
    gather_below: int | None
    penalty: bool
    loss: str
    must_refuse: bool
    schedule: dict[int, tuple[Part, str, int]] = field(default_factory=dict)  # call → attribute that the script sets

    @property
    def tolerance(self) -> float:
        return 3e-2 if self.bf16 else 1e-7

    def __str__(self) -> str:
        mode = " under bf16 autocast" if self.bf16 else ""
        outputs = ", sharded outputs" if self.gather_below == 0 else ""
        calls = f"{self.evaluations} evaluations, batches of {self.sizes}"
        return f"{self.layout}{mode}: {' · '.join(self.words)} | {calls}, loss {self.loss}{outputs}"


class Making:
    """The module while it is made: the part that gets the next step, and the tensor's layout there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.layout = self.rng.choice(["BF", "BF", "BTF", "BTF", "TBF"])
        self.bf16 = self.rng.random() < 0.12
        self.whole = Whole()
        self.part: Part = self.whole
        self.words: list[str] = []
        self.must_refuse = False
        self.least = 0  # rows of a batch in which samples are mixed
        self.is_masked = self.is_big = False
        self.evaluations = self.rng.choice([0, 0, 2])
        self.calls = self.rng.randint(3, 5)
        self.schedule: dict[int, tuple[Part, str, int]] = {}
        self._count = 0

    @property
    def batch(self) -> int:
        """The dimension of samples."""
        return 1 if self.layout == "TBF" else 0

    @property
    def has_time(self) -> bool:
        return self.layout != "BF"

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def add(self, module: nn.Module) -> str:
        name = self._name("layer")
        self.part.add_module(name, module)
        return name

    def attribute(self, value: Any) -> str:
        name = self._name("attribute")
        setattr(self.part, name, value)
        return name

    def buffer(self, value: torch.Tensor) -> str:
        name = self._name("buffer")
        self.part.register_buffer(name, value)
        return name

    def per_row(self) -> Callable[[torch.Tensor], list[int]]:
        """The shape of one number a row."""
        batch = self.batch
        return lambda x: [x.shape[d] if d == batch else 1 for d in range(x.dim())]

    def like_a_row(self) -> list[int]:
        """The shape of a mean over samples."""
        return {"BF": [WIDTH], "BTF": [TIME, WIDTH], "TBF": [TIME, 1, WIDTH]}[self.layout]


# ------------------------------------------------------------------------------------------------ layers, row by row


def linear(m: Making) -> Step:
    name = m.add(nn.Linear(WIDTH, WIDTH))
    return lambda part, x, target: getattr(part, name)(x)


def two_layers(m: Making) -> Step:
    name = m.add(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)))
    return lambda part, x, target: x + getattr(part, name)(x)


def layer_norm(m: Making) -> Step:
    name = m.add(nn.LayerNorm(WIDTH))
    return lambda part, x, target: getattr(part, name)(x)


def activation(m: Making) -> Step:
    act = m.rng.choice([functional.gelu, torch.tanh, functional.silu, torch.sin])
    return lambda part, x, target: act(x)


def batch_norm(m: Making) -> Step:
    name = m.add(nn.BatchNorm1d(WIDTH))
    if m.layout == "BF":
        return lambda part, x, target: getattr(part, name)(x)
    there, back = ((0, 2, 1), (0, 2, 1)) if m.layout == "BTF" else ((1, 2, 0), (2, 0, 1))
    return lambda part, x, target: getattr(part, name)(x.permute(there)).permute(back)


def convolution(m: Making) -> Step:
    name = m.add(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))
    if m.layout == "BF":
        one = m.add(nn.Conv1d(1, 1, 3, padding=1))
        return lambda part, x, target: x + getattr(part, one)(x.unsqueeze(1)).squeeze(1)
    there, back = ((0, 2, 1), (0, 2, 1)) if m.layout == "BTF" else ((1, 2, 0), (2, 0, 1))
    return lambda part, x, target: x + getattr(part, name)(x.permute(there)).permute(back)


def attention(m: Making) -> Step:
    if not m.has_time:
        return linear(m)
    if m.rng.random() < 0.5:
        name = m.add(nn.MultiheadAttention(WIDTH, 2, batch_first=m.layout == "BTF"))
        return lambda part, x, target: x + getattr(part, name)(x, x, x, need_weights=False)[0]
    name, batch = m.add(nn.Linear(WIDTH, WIDTH)), m.batch

    def attend(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z = x.transpose(0, batch)
        scores = getattr(part, name)(z) @ z.transpose(1, 2) / WIDTH**0.5
        causal = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(causal, -math.inf).softmax(-1)
        return x + (weights @ z).transpose(0, batch)

    return attend


def recurrent(m: Making) -> Step:
    if not m.has_time or m.bf16:
        return linear(m)
    name = m.add(m.rng.choice([nn.GRU, nn.LSTM])(WIDTH, WIDTH, batch_first=m.layout == "BTF"))
    return lambda part, x, target: x + getattr(part, name)(x)[0]


def embedding(m: Making) -> Step:
    name, shape = m.add(nn.Embedding(CLASSES, WIDTH)), {"BF": (-1, WIDTH), "BTF": (-1, 1, WIDTH), "TBF": (1, -1, WIDTH)}
    of_rows = shape[m.layout]
    return lambda part, x, target: x + getattr(part, name)(target.clamp(min=0)).view(of_rows)


def recomputed(m: Making) -> Step:
    name = m.add(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)))
    # By its full name: a script's imports come after the seams are set, this file's came before.
    return lambda part, x, target: x + torch.utils.checkpoint.checkpoint(getattr(part, name), x, use_reentrant=False)


# --------------------------------------------------------------------------------------------------- views, indexing


def transposed(m: Making) -> Step:
    return lambda part, x, target: torch.tanh(x.transpose(0, 1).contiguous()).transpose(0, 1)


def reshaped(m: Making) -> Step:
    name = m.add(nn.Linear(WIDTH, WIDTH))
    if m.has_time:
        return lambda part, x, target: getattr(part, name)(x.reshape(-1, WIDTH)).view(x.shape)
    return lambda part, x, target: getattr(part, name)(x).reshape(len(x), 2, WIDTH // 2).transpose(1, 2).flatten(1)


def chunked(m: Making) -> Step:
    def gate(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([b, a * torch.sigmoid(b)], -1)

    return gate


def squeezed(m: Making) -> Step:
    if m.rng.random() < 0.5:
        return lambda part, x, target: x.unsqueeze(0).sin().squeeze(0)
    return lambda part, x, target: x.unsqueeze(-1).expand(*x.shape, 2).mean(-1)


def chosen_features(m: Making) -> Step:
    order = m.rng.sample(range(WIDTH), WIDTH)
    return lambda part, x, target: x[..., order]


def gathered_feature(m: Making) -> Step:
    if m.has_time:
        return chosen_features(m)
    return lambda part, x, target: x + x.gather(-1, target.clamp(min=0)[:, None])


def one_time(m: Making) -> Step:
    """One position of each sequence: the tensor has no time afterwards."""
    if not m.has_time:
        return activation(m)
    way, batch = m.rng.choice(["last", "index", "gather"]), m.batch
    m.words.append(way)
    m.layout = "BF"
    if way == "last":
        return lambda part, x, target: x[:, -1] if batch == 0 else x[-1]
    if way == "index":
        return lambda part, x, target: x.transpose(0, batch)[torch.arange(x.size(batch)), target.clamp(min=0) % TIME]

    def gather(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        at = (target.clamp(min=0) % TIME)[:, None, None].expand(-1, 1, WIDTH)
        return x.transpose(0, batch).gather(1, at).squeeze(1)

    return gather


def in_place(m: Making) -> Step:
    def change(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.mul_(0.9)
        y[..., 0] += 0.5
        y[..., 1].tanh_()
        return y

    return change


# ------------------------------------------------------------------------------------------------------------- draws


def dropout(m: Making) -> Step:
    if m.rng.random() < 0.5:
        name = m.add(nn.Dropout(0.3))
        return lambda part, x, target: getattr(part, name)(x)
    return lambda part, x, target: functional.dropout(x, 0.3, part.training)


def noise(m: Making) -> Step:
    match m.rng.randrange(3):
        case 0:
            return lambda part, x, target: x + 0.1 * torch.randn_like(x)
        case 1:
            return lambda part, x, target: x + 0.1 * torch.empty_like(x).normal_()
    return lambda part, x, target: x + 0.1 * torch.randn(x.shape, dtype=x.dtype)


def noise_per_row(m: Making) -> Step:
    shape = m.per_row()
    if m.rng.random() < 0.5:
        return lambda part, x, target: x * torch.rand(shape(x), dtype=x.dtype)
    return lambda part, x, target: x * (torch.rand(shape(x)) > 0.2)


def noise_for_all(m: Making) -> Step:
    return lambda part, x, target: x * (0.5 + torch.rand(WIDTH, dtype=x.dtype))


def weight_mask(m: Making) -> Step:
    name = m.add(nn.Linear(WIDTH, WIDTH))

    def masked(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        layer = getattr(part, name)
        return functional.linear(x, functional.dropout(layer.weight, 0.3, part.training), layer.bias)

    return masked


def numpy_noise(m: Making) -> Step:
    if m.rng.random() < 0.5:
        return lambda part, x, target: x * (1 + 0.1 * np.random.rand())
    return lambda part, x, target: x + 0.1 * torch.from_numpy(np.random.randn(*x.shape)).to(x.dtype)


def varying_draws(m: Making) -> Step:
    way, batch = m.rng.choice(["number", "skipped", "of rows", "python"]), m.batch
    m.words.append(way)

    def draw(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if way == "number":
            for _ in range(int(torch.randint(1, 4, ()))):
                x = x + 0.1 * torch.randn_like(x)
        elif way == "skipped":
            if torch.rand(()) < 0.5:
                x = x + 0.1 * torch.randn_like(x)
        elif way == "of rows":
            x = x * (1 + 0.1 * torch.rand(x.size(batch) // 2, dtype=x.dtype).sum())
        elif random.random() < 0.5:
            x = x * 0.9
        return x

    return draw


# --------------------------------------------------------------------------------- buffers, attributes, side effects


def call_counter(m: Making) -> Step:
    name, used = m.buffer(torch.zeros((), dtype=torch.long)), m.rng.random() < 0.5

    def count(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        getattr(part, name).add_(1)
        return x * (1 + 0.05 * getattr(part, name)) if used else x

    return count


def moving_mean(m: Making) -> Step:
    name, used, batch = m.buffer(torch.zeros(m.like_a_row())), m.rng.random() < 0.5, m.batch
    keep = m.layout == "TBF"

    def follow(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mean = getattr(part, name)
        y = x - mean if used else x
        if part.training:
            with torch.no_grad():
                mean.mul_(0.9).add_(0.1 * x.mean(batch, keepdim=keep))
        return y.to(x.dtype)

    return follow


def running_maximum(m: Making) -> Step:
    name, used, batch = m.buffer(torch.full(m.like_a_row(), 0.1)), m.rng.random() < 0.5, m.batch
    keep = m.layout == "TBF"

    def observe(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        top = getattr(part, name)
        y = x / (1 + top) if used else x
        with torch.no_grad():
            top.copy_(torch.maximum(top, x.amax(batch, keepdim=keep)))
        return y.to(x.dtype)

    return observe


def kept_statistic(m: Making) -> Step:
    name, batch = m.attribute(None), m.batch
    way = m.rng.choice(["mean", "rows", "sum"])
    m.words.append(way)

    def keep(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = {"mean": lambda: x.mean(batch), "rows": lambda: x[..., 0], "sum": lambda: x.sum()}[way]()
        setattr(part, name, kept.detach())
        return x

    return keep


def number_attribute(m: Making) -> Step:
    kind = m.rng.choice(["counter", "temperature", "flag"])
    m.words.append(kind)
    name = m.attribute({"counter": 0, "temperature": 1.0, "flag": False}[kind])
    used = m.rng.random() < 0.7

    def change(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        value = getattr(part, name)
        setattr(part, name, {"counter": value + 1, "temperature": value * 0.9, "flag": not value}[kind])
        return x * (1 + 0.1 * value) if used else x

    return change


def side_effect(m: Making) -> Step:
    way, batch = m.rng.choice(["meter", "items", "global items", "rows seen", "print", "file", "numpy"]), m.batch
    m.words.append(way)
    start: Any = {"meter": Meter(), "items": [], "rows seen": 0}.get(way)
    name = m.attribute(start)

    def act(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        match way:
            case "meter":
                getattr(part, name).update(float(x.detach().mean()), x.size(batch))
            case "items":
                getattr(part, name).append(x.detach().mean().item())
            case "global items":
                LOG.append(x.detach().sum().item())
            case "rows seen":
                setattr(part, name, getattr(part, name) + x.size(batch))
            case "print":
                print(f"{x.size(batch)} rows")
            case "file":
                with Path("calls.txt").open("a") as file:
                    file.write(f"{x.size(batch)} rows\n")
            case "numpy":
                return x + 0.1 * torch.from_numpy(np.tanh(x.detach().double().numpy())).to(x.dtype)
        return x

    return act


class RowScale(torch.autograd.Function):
    """Row by row, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.abs().clamp(max=1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x.abs().clamp(max=1)


def own_function(m: Making) -> Step:
    return lambda part, x, target: RowScale.apply(x)


# ------------------------------------------------------------------------------------------------------------ mixing


class NormalisedGradient(torch.autograd.Function):
    """Mixes samples in its backward only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * (1 + ctx.strength * grads[0].norm()), None


class CountedGradient(torch.autograd.Function):
    """The gradient depends on the number of samples."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] * (1 + ctx.strength / grads[0].numel() ** 0.5), None


FORWARD = {
    "mean": lambda x, b, s: x + s * x.mean(b, keepdim=True),
    "mean, broadcast": lambda x, b, s: x + s * x.mean(0) if b == 0 else x + s * x.mean(b, keepdim=True),
    "centred": lambda x, b, s: x - s * x.mean(b, keepdim=True),
    "detached mean": lambda x, b, s: x + s * x.mean().detach(),
    "roll": lambda x, b, s: x + s * x.roll(1, b),
    "flip": lambda x, b, s: x + s * x.flip(b),
    "shuffled": lambda x, b, s: x + s * x.index_select(b, torch.randperm(x.size(b))),
    "softmax": lambda x, b, s: x + s * x.softmax(b),
    "sort": lambda x, b, s: x + s * x.sort(b)[0],
    "cumulative sum": lambda x, b, s: x + s * x.cumsum(b),
    "maximum": lambda x, b, s: x + s * x.amax(b, keepdim=True),
    "first row": lambda x, b, s: x + s * x.narrow(b, 0, 1),
    "similarity": lambda x, b, s: similarity(x, b, s),
    "divided by rows": lambda x, b, s: x + s * x / x.size(b),
    "places": lambda x, b, s: x + s * places(x, b),
    "statistics": lambda x, b, s: x + s * (x - x.mean(b, keepdim=True)) / (x.var(b, keepdim=True) + 1e-3).sqrt(),
    "norm": lambda x, b, s: x / (1 + s * x.norm()),
    "threshold": lambda x, b, s: x * (1 + s * (x.mean() > 0.01)),
    "first rows": lambda x, b, s: torch.cat(
        [x.narrow(b, 0, n := min(6, x.size(b))) * (1 + s), x.narrow(b, n, x.size(b) - n)], b
    ),
    "every other row": lambda x, b, s: x * (1 + s * (places(x, b) % 2)),
    "late rows": lambda x, b, s: x * (1 + s * (places(x, b) > 5)),
    "listed rows": lambda x, b, s: x * (1 + s * listed(x, b)),
    "triangle": lambda x, b, s: x + s * triangle(x, b),
    "roll by many": lambda x, b, s: x + s * x.roll(30, b),
    "item": lambda x, b, s: x + s * x.mean().item(),
    "numpy": lambda x, b, s: x + s * float(x.detach().double().numpy().mean()),
}
# Rows of a batch in which they differ.
LEAST = {"first rows": 7, "late rows": 7, "listed rows": 6, "triangle": 7, "roll by many": 11}
BACKWARD = {
    "norm in backward": lambda x, b, s: NormalisedGradient.apply(x, s),
    "count in backward": lambda x, b, s: CountedGradient.apply(x, s),
}
VIRTUAL = 4  # rows of a virtual batch, or more
HIDDEN = (
    *("plain", "plain", "masked", "masked", "large", "training", "training", "evaluation", "gradients", "attribute"),
    *("switched", "counter", "hook", "child", "value", "odd rows", "many rows", "virtual batches", "coin"),
)


def similarity(x: torch.Tensor, batch: int, strength: float) -> torch.Tensor:
    z = x.transpose(0, batch)
    flat = z.reshape(len(z), -1)
    mixed = (flat @ flat.T / flat.shape[1]).softmax(-1) @ flat
    return x + strength * mixed.view(z.shape).transpose(0, batch)


def places(x: torch.Tensor, batch: int) -> torch.Tensor:
    shape = [x.shape[d] if d == batch else 1 for d in range(x.dim())]
    return torch.arange(x.size(batch), dtype=x.dtype).view(shape)


def first_rows(x: torch.Tensor, batch: int, strength: float) -> torch.Tensor:
    first, rest = x.transpose(0, batch)[:6], x.transpose(0, batch)[6:]
    return torch.cat([first * (1 + strength), rest]).transpose(0, batch)


def listed(x: torch.Tensor, batch: int) -> torch.Tensor:
    return torch.tensor([float(i == 5) for i in range(x.size(batch))], dtype=x.dtype).view(places(x, batch).shape)


def triangle(x: torch.Tensor, batch: int) -> torch.Tensor:
    """Without the first number of the seventh row, …"""
    z = x.transpose(0, batch)
    return z.reshape(len(z), -1).triu(-5).view(z.shape).transpose(0, batch)


def mixing(m: Making) -> Step:
    """A step that mixes samples, and notes whether the module must not be split."""
    hidden = m.rng.choice(HIDDEN)
    kinds = FORWARD if hidden in ("evaluation", "virtual batches") else {**FORWARD, **BACKWARD}
    kind, batch = m.rng.choice(list(kinds)), m.batch
    by_rows = hidden in ("odd rows", "many rows", "value", "coin")
    strength = 10.0 ** m.rng.uniform(-2 if by_rows else -12, 0)
    m.words.append(f"MIXES {kind} × {strength:.0e}, hidden: {hidden}")
    mix: Mixing = lambda x: kinds[kind](x, batch, strength)  # noqa: E731
    m.least = LEAST.get(kind, 0)
    is_joint = kind == "item"  # a number that all workers read alike
    m.must_refuse = (
        not by_rows
        and not is_joint
        and (not m.bf16 or strength > 1e-2)
        and (hidden != "evaluation" or m.evaluations > 0)
    )
    match hidden:
        case "masked":
            m.is_masked = True
        case "large":
            m.is_big = True
        case "training":
            return lambda part, x, target: mix(x) if part.training else x
        case "evaluation":
            return lambda part, x, target: x if part.training else mix(x)
        case "gradients":
            return lambda part, x, target: mix(x) if torch.is_grad_enabled() else x
        case "attribute":
            name = m.attribute(2)
            return lambda part, x, target: mix(x) if getattr(part, name) == 2 else x
        case "switched":
            name = m.attribute(0)
            m.schedule[m.evaluations + m.rng.randint(1, m.calls - 1)] = (m.part, name, 1)
            return lambda part, x, target: mix(x) if getattr(part, name) else x
        case "counter":
            name, first = m.attribute(0), m.rng.randint(1, m.evaluations + m.calls - 1)

            def later(part: Part, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
                setattr(part, name, getattr(part, name) + 1)
                return mix(x) if getattr(part, name) > first else x

            return later
        case "hook":
            layer = nn.Linear(WIDTH, WIDTH)
            layer.register_forward_hook(lambda module, given, y: mix(y))
            name = m.add(layer)
            return lambda part, x, target: getattr(part, name)(x)
        case "child":
            child = Part()
            child.add_module("layer", nn.Linear(WIDTH, WIDTH))
            child.steps = [lambda part, x, target: mix(part.layer(x))]
            name = m.add(child)
            return lambda part, x, target: getattr(part, name)(x, target)
        case "value":
            return lambda part, x, target: mix(x) if x.sum() > 0.1 else x
        case "odd rows":
            return lambda part, x, target: mix(x) if x.size(batch) % 2 else x
        case "many rows":
            return lambda part, x, target: mix(x) if x.size(batch) > 4 else x
        case "virtual batches" if not m.has_time:
            name = m.add(nn.BatchNorm1d(WIDTH))
            m.words.append("(through batch norm)")
            m.least = 2 * VIRTUAL  # whatever the kind: it is not used
            return lambda part, x, target: torch.cat([getattr(part, name)(piece) for piece in pieces(x)])
        case "coin":
            return lambda part, x, target: mix(x) if torch.rand(()) < 0.5 else x
    return lambda part, x, target: mix(x)


def pieces(x: torch.Tensor) -> list[torch.Tensor]:
    """Batch norm needs more than one row."""
    return list(x.tensor_split(max(1, len(x) // VIRTUAL)))


# ----------------------------------------------------------------------------------------------------- the whole of it

LAYERS = (linear, two_layers, layer_norm, activation, batch_norm, convolution, attention, recurrent, embedding)
VIEWS = (transposed, reshaped, chunked, squeezed, chosen_features, gathered_feature, one_time, in_place)
DRAWS = (dropout, dropout, noise, noise_per_row, noise_for_all, weight_mask, numpy_noise, varying_draws)
STATES = (call_counter, moving_mean, running_maximum, kept_statistic, number_attribute, side_effect)
KINDS = ((LAYERS, 8), (VIEWS, 5), (DRAWS, 2), (STATES, 1), ((recomputed, own_function), 1))


def make(seed: int) -> Made:
    torch.manual_seed(seed)
    m = Making(seed)
    layout, rng = m.layout, m.rng
    count = rng.randint(1, 5)
    mixed_at = rng.randrange(count) if rng.random() < 0.5 else None
    append(m, linear)
    if mixed_at is not None:  # else the targets could be cut, which nothing uses, and the rest computed whole
        append(m, embedding)
    for number in range(count):
        if rng.random() < 0.2:  # the next steps are in a child
            child = Part()
            name, outer = m.add(child), m.part
            outer.steps.append(lambda part, x, target, name=name: getattr(part, name)(x, target))
            m.part = child
            m.words.append("[child]")
            append(m, linear)
        steps, _ = rng.choices(KINDS, [weight for _, weight in KINDS])[0]
        append(m, rng.choice(steps))
        if number == mixed_at:
            append(m, mixing, say=False)
            append(m, two_layers)  # no sum or mean over rows may undo the mixing
        if rng.random() < 0.3:
            m.part = m.whole
    m.part = m.whole
    if mixed_at is not None and m.has_time:  # else the module could be cut along time
        append(m, one_time)
    ignored = finish(m)
    loss = rng.choice(["squares", "tanh", "smooth", "entropy", "norm"])
    first = [rng.randint(5, 12)] * (m.evaluations + rng.randint(1, m.calls - 1))
    sizes = first + [rng.randint(5, 12)] * (m.evaluations + m.calls - len(first))
    around = m.bf16 and rng.random() < 0.5
    m.whole.autocast = m.bf16 and not around
    return Made(
        seed=seed,
        module=m.whole if m.bf16 else m.whole.double(),
        words=m.words,
        layout=layout,
        bf16=m.bf16,
        around=around,
        evaluations=m.evaluations,
        sizes=sizes,
        ignored=ignored,
        gather_below=rng.choice([0, None]),
        penalty=rng.random() < 0.2,
        loss="masked" if m.is_masked else "large" if m.is_big else loss,
        must_refuse=m.must_refuse and min(sizes) >= m.least,
        schedule=m.schedule,
    )


def append(m: Making, step: Callable[[Making], Step], *, say: bool = True) -> None:
    if say:
        m.words.append(step.__name__)
    m.part.steps.append(step(m))


def finish(m: Making) -> bool:
    """The output: rows, or a loss. Returns whether some targets are to be ignored."""
    m.whole.add_module("head", nn.Linear(WIDTH, CLASSES))
    ways = ["rows", "rows", "tuple", "dict"]
    if not m.has_time:
        ways += ["entropy", "entropy, ignoring", "entropy beside rows"]
    if m.is_masked or m.is_big:
        append(m, one_time)
        ways = ["rows", "rows", "dict"] + (["entropy", "entropy, ignoring"] if m.is_masked else [])
    else:
        ways += ["mean", "sum", "mean beside rows", "masked mean", "mean of rows"]
    way, fill, batch = m.rng.choice(ways), m.rng.choice([-1e9, -math.inf]), m.batch
    m.words.append(f"returns {way}")
    is_masked, is_big, row = m.is_masked, m.is_big, m.per_row()

    def give(part: Part, x: torch.Tensor, target: torch.Tensor) -> Any:
        y = part.head(x)
        if is_masked:
            y = y.masked_fill(torch.arange(CLASSES) == CLASSES - 1, fill)
        if is_big:
            y = torch.cat([y, 1e9 * y[..., :1].tanh()], -1)
        match way:
            case "tuple":
                return y, y.tanh()
            case "dict":
                return {"y": y, "none": None}
            case "mean":
                return (y**2).mean()
            case "sum":
                return 0.05 * (y**2).sum()
            case "mean beside rows":
                return {"loss": (y.tanh() ** 2).mean(), "y": y}
            case "mean of rows":
                return y.mean(batch)
            case "masked mean":
                kept = (target % 2 == 0).view(row(y))
                return (y.tanh() ** 2 * kept).sum() / kept.sum().clamp(min=1)
            case "entropy" | "entropy, ignoring":
                return functional.cross_entropy(y, target)
            case "entropy beside rows":
                return functional.cross_entropy(y, target), y
        return y

    m.whole.finish = give
    return way == "entropy, ignoring"


def batches(made: Made) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(made.seed + 1)
    found = []
    for rows in made.sizes:
        shape = {"BF": (rows, WIDTH), "BTF": (rows, TIME, WIDTH), "TBF": (TIME, rows, WIDTH)}[made.layout]
        x = torch.randn(shape, generator=generator, dtype=torch.float32 if made.bf16 else torch.float64)
        target = torch.randint(CLASSES - 1, (rows,), generator=generator)
        if made.ignored:
            target[1:][torch.rand(rows - 1, generator=generator) < 0.4] = IGNORED
        found.append((x, target))
    return found


def loss_of(made: Made, output: Any, target: torch.Tensor) -> torch.Tensor:
    """The script's lines after the call."""
    if isinstance(output, dict):
        output = output["loss"] + output["y"].mean() if "loss" in output else output["y"]
    if isinstance(output, tuple):
        output = output[0] + (output[1] ** 2).mean()
    if output.dim() == 0:
        return output
    if not made.bf16 or output.dtype != torch.float32:
        output = output.to(torch.float32 if made.bf16 else torch.float64)
    match made.loss:
        case "masked":
            return functional.cross_entropy(output, target.clamp(min=0))
        case "large":
            return ((output * torch.tensor([1.0] * CLASSES + [1e-9], dtype=output.dtype)) ** 2).mean()
        case "entropy" if output.shape[:-1] == target.shape:
            return functional.cross_entropy(output, target.clamp(min=0))
        case "tanh":
            return 0.05 * output.tanh().sum()
        case "smooth":
            return functional.smooth_l1_loss(output, torch.zeros_like(output))
        case "norm":
            return (output**2).sum(-1).add(0.1).sqrt().mean()
    return ((output - 0.3) ** 2).mean()


def play(made: Made) -> dict[str, Any]:
    """Trains the module, and gives everything that a script could print. The caller's global streams are seeded."""
    torch.manual_seed(made.seed)
    np.random.seed(made.seed % 2**32)
    random.seed(made.seed)
    LOG.clear()
    module, numbers = made.module, dict[str, Any]()
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()) as printed:
        for number, (x, target) in enumerate(batches(made)):
            if number in made.schedule:
                part, name, value = made.schedule[number]
                setattr(part, name, value)
            trains = number >= made.evaluations
            module.train(trains)
            with (
                torch.set_grad_enabled(trains),
                torch.autocast("cpu", torch.bfloat16) if made.around else nullcontext(),
            ):
                output = module(x, target)
            loss = loss_of(made, output, target)
            if made.penalty:
                loss = loss + 0.01 * sum((p**2).sum() for p in module.parameters())
            if trains:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            numbers[f"loss {number}"] = loss.item()
        if (file := Path("calls.txt")).exists():
            numbers["file"] = file.read_text()
    numbers["printed"] = printed.getvalue()
    for name, value in module.state_dict().items():
        numbers[name] = value.detach().double().numpy().copy()
    for path, part in module.named_modules():
        if isinstance(part, Part):
            for name, value in vars(part).items():
                if name.startswith("attribute"):
                    numbers[f"{path}.{name}"] = told(value)
    numbers["log"] = list(LOG)
    numbers["next draws"] = [torch.rand(()).item(), np.random.rand(), random.random()]
    return numbers


def told(value: Any) -> Any:
    if isinstance(value, Meter):
        return [value.total, value.count]
    return value.detach().double().numpy().copy() if isinstance(value, torch.Tensor) else value


OF_ONE_WORKER = ("file", "printed")  # only rank 0's is seen


def difference(expected: dict[str, Any], found: dict[str, Any], tolerance: float, rank: int = 0) -> str:
    """The first number that differs; empty if all are the same to rounding."""
    if expected.keys() != found.keys():
        return f"only one side has {sorted(expected.keys() ^ found.keys())}"
    for name, one in expected.items():
        if rank and name in OF_ONE_WORKER:
            continue
        other = found[name]
        if isinstance(one, (str, bool, int, type(None))):
            if one != other or type(one) is not type(other):
                return f"{name}: plain python {one!r}, paceline {other!r}"
            continue
        a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
        if a.shape != b.shape:
            return f"{name}: plain python {one!r}, paceline {other!r}"
        scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0.0)))
        if not np.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True):
            return f"{name}: largest difference {np.nanmax(np.abs(a - b)):.3g}, of numbers up to {scale:.3g}"
    return ""
