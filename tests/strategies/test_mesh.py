"""Mesh: layouts change what each worker holds, and never a number."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pool import Pools
from staged import staged
from torch import nn

from paceline.comm.axes import Axes
from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.strategies import catalog
from paceline.strategies.mesh import functions
from paceline.strategies.mesh.dimensions import names_of
from paceline.strategies.mesh.layout import MeshLayout
from paceline.strategies.mesh.mesh import Mesh

Script = Callable[..., Any]


def on_mesh(group: Group, strategy: str, script: Script, *args: Any) -> Any:
    with staged(group, strategy=catalog.load(strategy)):
        return script(*args)


def check(pools: Pools, strategy: str, script: Script, *args: Any) -> None:
    """The script gives the same numbers on one process and on the mesh."""
    torch.manual_seed(0)
    expected = script(*args)
    workers = catalog.parse(strategy).workers
    assert workers is not None
    for found in pools(workers, "mesh").run(on_mesh, strategy, script, *args):
        compare(found, expected)


def compare(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = list(found.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            compare(a, b)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-10)
    else:
        assert found == expected


def saved(thing: Any) -> Any:
    """What a script's own torch.save writes."""
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, steps: int = 4, clip: float = 0.5) -> list[Any]:
    """Losses, gradient norms, the final weights and the optimizer's state."""
    parameters = list(model.parameters())  # before the first call: these objects must stay the model's parameters
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for step in range(steps):
        rows = torch.randperm(len(x))[: 9 - step]
        loss = F.cross_entropy(model(x[rows]).flatten(0, -2), y[rows].flatten())
        loss = loss + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        seen += [loss.item(), float(nn.utils.clip_grad_norm_(parameters, clip))]
        optimizer.step()
    return [seen, saved(model.state_dict()), saved(optimizer.state_dict())]


# -- scripts -----------------------------------------------------------------------------------------------------------


def mlp() -> Any:
    torch.manual_seed(1)
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 2)
    model = nn.Sequential(*layers).double()
    return train(model, torch.randn(12, 6, dtype=torch.float64), torch.randint(0, 2, (12,)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"out": nn.Linear(width, width)})
        for name in ("qkv",) if fused else ("q", "k", "v"):
            self.attn[name] = nn.Linear(width, 3 * width if fused else width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        h = self.norm1(x)
        if self.fused:
            q, k, v = self.attn["qkv"](h).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (self.attn[n](h).view(batch, tokens, self.heads, -1).transpose(1, 2) for n in ("q", "k", "v"))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.attn["out"](mixed.transpose(1, 2).reshape(batch, tokens, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class SmallGPT(nn.Module):
    def __init__(self, *, tied: bool, fused: bool) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(10, 8), nn.Embedding(5, 8)
        self.blocks = nn.Sequential(*(Block(8, 4, fused=fused) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 10, bias=not tied)
        if tied:
            self.head.weight = self.word.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def gpt(tied: bool, fused: bool) -> Any:
    torch.manual_seed(1)
    model = SmallGPT(tied=tied, fused=fused).double()
    ids = torch.randint(0, 10, (12, 6))
    return train(model, ids[:, :-1], ids[:, 1:])


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc1, self.fc2 = nn.Linear(4 * 9, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.fc2(F.dropout(F.relu(self.fc1(x.flatten(1))), 0.2, self.training))


def conv_net() -> Any:
    torch.manual_seed(1)
    return train(ConvNet().double(), torch.randn(12, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (12,)))


def encoder_layers() -> Any:
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)).double()
    found = train(model, torch.randn(12, 4, 8, dtype=torch.float64), torch.randint(0, 3, (12, 4)))
    model.eval()
    with torch.no_grad():
        return [*found, model(torch.ones(3, 4, 8, dtype=torch.float64))]


def looks_at_its_weights() -> Any:
    """What scripts do with weights outside the model: averages, copies, prints, loads, resets, other optimizers."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    slow = copy.deepcopy(model)
    x, seen = torch.randn(10, 6, dtype=torch.float64), list[Any]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        (model(x).square().mean() + 0.1 * model[0].weight.abs().max()).backward()
        first = model[0].weight
        assert isinstance(first, nn.Parameter)
        assert first.grad is not None
        seen += [first.grad.norm().item(), first.grad[1].tolist(), first.detach().numpy().sum(), first[:, 1].tolist()]
        seen += [repr(first), f"{first.grad.norm():.9f}", str(first.grad.mean()), float(first.grad.std())]
        optimizer.step()
        with torch.no_grad():
            for average, new in zip(slow.parameters(), model.parameters(), strict=True):
                average.mul_(0.9).add_(new, alpha=0.1)
        for average, new in zip(slow.parameters(), model.parameters(), strict=True):
            average.data = average.data * 0.5 + new.data * 0.5
    copied = copy.deepcopy(slow)
    for mine, new in zip(copied.parameters(), model.parameters(), strict=True):
        mine.data = new.data
    seen += [saved(copied.state_dict()), torch.ones(2).to(model[0].weight).dtype]
    seen += [nn.utils.parameters_to_vector(model.parameters()).detach(), saved(slow.state_dict())]
    twin = copy.deepcopy(model)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    nn.init.normal_(model[0].weight)
    model[2].weight.data[0] = 1.0
    model[0].bias.data = torch.full((8,), 0.5, dtype=torch.float64)
    seen += [model(x).detach().sum(), saved(model.state_dict()), twin(x).detach().sum()]
    model.load_state_dict(best)
    seen.append(model(x).detach().sum())
    resumed = torch.optim.AdamW(model.parameters(), lr=1e-2)
    resumed.load_state_dict(saved(optimizer.state_dict()))
    resumed.zero_grad()
    model(x).square().mean().backward()
    resumed.step()
    grads = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    return [*seen, saved(model.state_dict()), saved(resumed.state_dict()), [g.sum().item() for g in grads]]


def scaled_losses() -> Any:
    """torch.amp changes lists of gradients in place; a penalty on gradients has a gradient of its own."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    x, seen = torch.randn(10, 6, dtype=torch.float64), list[Any]()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        scaler.scale(loss + sum(slope.square().sum() for slope in slopes)).backward()
        scaler.unscale_(optimizer)
        seen += [loss.item(), float(nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True))]
        scaler.step(optimizer)
        scaler.update()
    return [seen, saved(model.state_dict())]


def normed() -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()
    return train(model, torch.randn(12, 6, dtype=torch.float64), torch.randint(0, 2, (12,)))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((8,), 0.125))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Rounded.apply(x, self.scale)


def own_function() -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Rounding(), nn.Linear(8, 2)).double()
    return train(model, torch.randn(12, 6, dtype=torch.float64), torch.randint(0, 2, (12,)))


def transformed() -> Any:
    """Per-sample gradients by torch.func, and a transform of the model itself, whose parameters get a gradient."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    x, seen = torch.randn(10, 6, dtype=torch.float64), list[Any]()

    def one(params: Any, row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, params, (row[None],)).square().sum()

    for _ in range(3):
        model.zero_grad()
        torch.func.vmap(model)(x).square().mean().backward()
        params = {name: p.detach() for name, p in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(params, x)
        seen.append([model(x).sum().item(), *(g.norm(dim=0).sum().item() for g in each.values())])
        seen.append([p.grad.sum().item() for p in model.parameters()])
        seen.append(torch.func.jacrev(model)(x[0]).sum().item())
        seen.append(torch.func.vjp(one, dict(model.named_parameters()), x[1])[0].item())
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * each[name].mean(0)
    return seen


SCRIPTS: dict[str, tuple[Any, ...]] = {
    "mlp": (mlp,),
    "batch norm": (normed,),
    "gpt, tied, fused": (gpt, True, True),
    "gpt, untied": (gpt, False, False),
    "conv net": (conv_net,),
    "encoder": (encoder_layers,),
    "weights": (looks_at_its_weights,),
    "scaled losses": (scaled_losses,),
    "transforms": (transformed,),
    "own function": (own_function,),
}


ON_COPIES = ("mlp", "batch norm", "scaled losses")  # in the default run: no tensor is split there


@pytest.mark.parametrize(
    ("script", "strategy"),
    [
        *((script, "mesh(data=1,model=2)") for script in SCRIPTS),
        *(
            pytest.param(script, "mesh(data=2,model=1)", marks=[] if script in ON_COPIES else [pytest.mark.slow])
            for script in SCRIPTS
        ),
    ],
)
def test_numbers_are_those_of_one_process(pool: Pools, script: str, strategy: str) -> None:
    check(pool, strategy, *SCRIPTS[script])


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_numbers_are_those_of_one_process_on_two_axes(pool: Pools, script: str) -> None:
    check(pool, "mesh(data=2,model=2)", *SCRIPTS[script])


# -- layouts -----------------------------------------------------------------------------------------------------------

WEIGHTS = [("s", "n"), ("n", "s"), ("n", "m")]
BIASES = [("s",), ("n",)]


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.tuples(*[st.sampled_from(WEIGHTS), st.sampled_from(BIASES)] * 3))
def test_results_never_depend_on_the_layout(pool: Pools, names: tuple[tuple[str, ...], ...]) -> None:
    parameters = [f"{layer}.{kind}" for layer in (0, 3, 5) for kind in ("weight", "bias")]
    described = "; ".join(f"{name}: {', '.join(dims)}" for name, dims in zip(parameters, names, strict=True))
    check(pool, f'mesh(data=1,model=2,layout=s:model,dimensions="{described}")', mlp)


def refusal(group: Group, strategy: str) -> str:
    try:
        on_mesh(group, strategy, mlp)
    except BaseException as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("layout=hidden:model; embed:model", "0.weight (hidden, embed) has two dimensions on the axis model"),
        ('layout=a:model,dimensions="3.bias: a; *.weight: b, c"', ""),
        ('layout=a:model,dimensions="0.weight: b, a"', ""),
        ("layout=depths:model", "no parameter has the dimension 'depths'"),
        ('layout=a:model,dimensions="0.weight: a"', "0.weight has the shape (8, 6), and its description 1 dimensions"),
    ],
)
def test_illegal_layouts_are_refused_with_the_tensors_name(pool: Pools, arguments: str, said: str) -> None:
    for found in pool(2, "mesh").run(refusal, f"mesh(data=1,model=2,{arguments})"):
        assert said in found if said else not found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hidden", "'hidden' is not of the form dimension:axis"),
        ("hidden:rows", "names the axis 'rows', which the mesh does not have"),
        ("hidden:data", "rows of the batch lie on the axis data"),
        ("batch:model", "rows of the batch lie on the axis data"),
    ],
)
def test_layouts_are_read_before_a_worker_starts(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        MeshLayout.of(text)


def test_what_cannot_be_divided_is_refused_if_it_was_asked_for() -> None:
    with pytest.raises(UsageError, match=r"fc.weight \(hidden, embed\) of the shape \(7, 4\): hidden = 7 is not"):
        MeshLayout.of("hidden:model").dim_on_model("fc.weight", ("hidden", "embed"), (7, 4), 2)
    assert MeshLayout.of("").dim_on_model("fc.weight", ("hidden", "embed"), (7, 4), 2) is None


def test_dimensions_are_named_by_structure() -> None:
    found = {name: dims for name, _, dims in names_of(SmallGPT(tied=True, fused=False), MeshLayout.of(""))}
    assert found["word.weight"] == ("vocab", "embed")
    assert found["position.weight"] == ("position", "embed")
    assert found["blocks.0.attn.q.weight"] == ("heads", "embed")
    assert found["blocks.0.attn.out.weight"] == ("embed", "heads")
    assert found["blocks.1.mlp.0.weight"] == ("hidden", "embed")
    assert found["blocks.1.mlp.2.weight"] == ("embed", "hidden")
    assert found["blocks.1.mlp.2.bias"] == ("embed",)
    conv = {name: dims for name, _, dims in names_of(ConvNet(), MeshLayout.of("", "fc2.*: a, b"))}
    assert conv["conv.weight"] == ("channels", "in_channels", "height", "width")
    assert conv["fc1.bias"] == ("hidden",)
    assert conv["fc2.weight"] == ("a", "b")


def test_a_wrong_number_of_workers_is_told_the_right_one() -> None:
    with pytest.raises(UsageError, match="the run has 3"):
        Mesh(data=2, model=2).axes(3)
    assert Mesh(model=2).axes(6).data == 3
    with pytest.raises(UsageError, match="the run has 3"):
        Mesh(shard=2).axes(3)
    assert Mesh(shard=2).axes(6) == Axes(data=3, shard=2)


@pytest.mark.parametrize("fused", [True, False])
def test_each_worker_computes_some_heads(pool: Pools, fused: bool) -> None:
    assert pool(2, "mesh").run(heads_computed, fused) == [[(3, 2, 5, 2)] * 6] * 2


def heads_computed(group: Group, fused: bool) -> Any:
    seen: list[Any] = []
    with staged(group, strategy=catalog.load("mesh(data=1,model=2)")):
        plain = F.scaled_dot_product_attention

        def attention(q: Any, k: Any, v: Any, **rest: Any) -> Any:
            seen.extend(tuple(x.to_local().shape) for x in (q, k, v))
            return plain(q, k, v, **rest)

        F.scaled_dot_product_attention = attention
        try:
            SmallGPT(tied=True, fused=fused)(torch.zeros(3, 5, dtype=torch.long))
        finally:
            F.scaled_dot_product_attention = plain
    return seen


def test_each_worker_holds_a_part(pool: Pools) -> None:
    assert pool(2, "mesh").run(bytes_held) == [[(8, 6), (4, 6)]] * 2


def bytes_held(group: Group) -> Any:
    with staged(group, strategy=catalog.load("mesh(data=1,model=2)")):
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        model(torch.ones(2, 6))
        weight: Any = model[0].weight
        return [tuple(weight.shape), tuple(weight.shard.to_local().shape)]


def test_a_worker_without_memory_does_not_gather_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")

    monkeypatch.setattr(functions, "_as_shards", lambda args, kwargs: (args, kwargs))
    monkeypatch.setattr(functions, "_gathered", lambda *_: pytest.fail("the others do not gather"))
    with pytest.raises(RuntimeError, match="can't allocate"):
        functions._pointwise(add, "add", (), {})
