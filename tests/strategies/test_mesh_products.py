"""Products of axes: layers split along model, parts along shard, stages along pipe, rows along data. Same numbers."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pool import Pools
from staged import staged
from test_mesh import SCRIPTS, SmallGPT, check, on_mesh, saved
from torch import nn

from paceline.comm.axes import Axes
from paceline.comm.group import Group
from paceline.errors import UsageError
from paceline.strategies import catalog
from paceline.strategies.mesh.mesh import Mesh

PAIRS = ("mesh(data=1,shard=2,model=2)", "mesh(data=1,pipe=2,model=2)", "mesh(data=1,pipe=2,shard=2)")
TRIPLES = (
    *("mesh(data=2,shard=2,model=2)", "mesh(data=2,pipe=2,model=2)", "mesh(data=2,pipe=2,shard=2)"),
    "mesh(data=1,pipe=2,shard=2,model=2)",
)
# Without gradients of gradients and torch.func, which FSDP2 and pipelines refuse.
TRAINED = ("mlp", "batch norm", "gpt, tied, fused", "gpt, untied", "conv net", "encoder", "own function")


def momentum_and_decay() -> Any:
    """Dropout, momentum, weight decay, clipping by norm, and checkpoints that are loaded into new objects."""
    torch.manual_seed(3)
    model = SmallGPT(tied=False, fused=True).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    ids, seen = torch.randint(0, 10, (8, 6)), list[Any]()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        for part in ids.split(4):  # accumulates
            loss = F.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten()) / 2
            loss.backward()
            seen.append(loss.item())
        seen.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()

    for _ in range(3):
        step(model, optimizer)
    seen += [
        repr(model.head.weight.detach()[0]),
        f"{model.word.weight.norm():.9f}",
        model.blocks[0].mlp[0].weight.std().item(),
    ]
    states = saved(model.state_dict()), saved(optimizer.state_dict())
    again = SmallGPT(tied=False, fused=True).double()
    resumed = torch.optim.SGD(again.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)
    again.load_state_dict(states[0])
    resumed.load_state_dict(copy.deepcopy(states[1]))  # torch keeps the tensors that it is given
    step(again, resumed)
    again.load_state_dict(states[0])  # after the first call, too
    resumed.load_state_dict(copy.deepcopy(states[1]))
    step(again, resumed)
    with torch.no_grad():
        return [seen, states, saved(again.state_dict()), saved(resumed.state_dict()), again.eval()(ids[:, :-1])]


@pytest.mark.crossed("strategy")
@pytest.mark.parametrize("script", [*TRAINED, "weights"])
@pytest.mark.parametrize("strategy", PAIRS)
def test_pairs_give_the_numbers_of_one_process(pool: Pools, strategy: str, script: str) -> None:
    check(pool, strategy, *SCRIPTS[script])


@pytest.mark.parametrize("strategy", PAIRS)
def test_checkpoints_clipping_and_momentum_of_pairs(pool: Pools, strategy: str) -> None:
    check(pool, strategy, momentum_and_decay)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["mlp", "gpt, untied", "weights"])
@pytest.mark.parametrize("strategy", TRIPLES)
def test_triples_give_the_numbers_of_one_process(pool: Pools, strategy: str, script: str) -> None:
    check(pool, strategy, *SCRIPTS[script])


# -- what a worker keeps -----------------------------------------------------------------------------------------------


def parts_kept(group: Group, strategy: str) -> Any:
    """The shapes of what this worker keeps of two layers' weights, and of the momentum of the first."""
    with staged(group, strategy=catalog.load(strategy)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        weights: list[Any] = [model[0].weight, model[2].weight]
        kept = [*weights, optimizer.state[weights[0]].get("momentum_buffer")]
        parts = [getattr(one, "value", one) for one in kept]
        return [None if part is None else tuple(getattr(part, "_local_tensor", part).shape) for part in parts]


@pytest.mark.parametrize(
    ("strategy", "kept"),
    [
        # The first layer is split by its outputs, the second by its inputs; shard cuts the first dimension of both.
        ("mesh(data=1,shard=2,model=2)", [[(2, 6), (2, 4), (2, 6)]] * 4),
        ("mesh(data=1,pipe=2,model=2)", [[(4, 6), None, (4, 6)]] * 2 + [[None, (4, 4), None]] * 2),
        ("mesh(data=1,pipe=2,shard=2)", [[(4, 6), None, (4, 6)]] * 2 + [[None, (2, 8), None]] * 2),
    ],
)
def test_each_worker_keeps_a_part_along_both_axes(pool: Pools, strategy: str, kept: list[Any]) -> None:
    assert pool(4, "mesh").run(parts_kept, strategy) == kept


def heads(group: Group, strategy: str) -> Any:
    """The shapes of the queries of each attention that this worker computes in a call, after the first one."""
    seen: list[Any] = []
    with staged(group, strategy=catalog.load(strategy)):
        torch.manual_seed(0)
        model, ids = SmallGPT(tied=True, fused=True), torch.zeros(4, 5, dtype=torch.long)
        model(ids)
        plain = F.scaled_dot_product_attention

        def attention(q: Any, k: Any, v: Any, **rest: Any) -> Any:
            seen.append(tuple(getattr(q, "_local_tensor", q).shape))
            return plain(q, k, v, **rest)

        F.scaled_dot_product_attention = attention
        try:
            model(ids)
        finally:
            F.scaled_dot_product_attention = plain
    return seen


def test_layers_are_computed_in_parts_beside_other_axes(pool: Pools) -> None:
    """Two of four heads, of own rows: half the batch along shard."""
    assert pool(4, "mesh").run(heads, PAIRS[0]) == [[(2, 2, 5, 2)] * 2] * 4
    for found in pool(4, "mesh").run(heads, PAIRS[1]):
        assert any(shape[1] == 2 for shape in found)  # a stage that begins inside an attention computes it whole


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "workers", "axes"),
    [
        ({"shard": 2, "model": 2}, 8, Axes(data=2, shard=2, tensor=2)),
        ({"pipe": 2, "model": 2}, 4, Axes(pipe=2, data=1, tensor=2)),
        ({"pipe": 2, "shard": 3}, 12, Axes(pipe=2, data=2, shard=3)),
        ({"data": 1, "pipe": 2, "shard": 2, "model": 2}, 8, Axes(pipe=2, shard=2, tensor=2)),
    ],
)
def test_a_product_is_laid_out_or_told_the_right_number(asked: dict[str, int], workers: int, axes: Axes) -> None:
    assert Mesh(**asked).axes(workers) == axes
    with pytest.raises(UsageError, match=rf"needs data × .* workers; the run has {workers - 1}") as raised:
        Mesh(**asked).axes(workers - 1)
    assert "-n" in raised.value.advice


def test_every_axis_has_a_worker() -> None:
    for axis in ("model", "shard", "pipe"):
        with pytest.raises(UsageError, match="at least one worker"):
            catalog.parse(f"mesh({axis}=0)")
    with pytest.raises(UsageError, match="at least one worker"):
        Mesh(pipe=0)


def penalised(group: Group, strategy: str) -> str:
    def script() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
        loss = model(torch.ones(4, 6, dtype=torch.float64)).square().mean()
        torch.autograd.grad(loss, list(model.parameters()), create_graph=True)

    try:
        on_mesh(group, strategy, script)
    except BaseException as error:
        return str(error)
    return ""


@pytest.mark.parametrize("strategy", PAIRS)
def test_gradients_of_gradients_are_refused(pool: Pools, strategy: str) -> None:
    for found in pool(4, "refusals").run(penalised, strategy):
        assert "gradients of gradients" in found


def test_a_script_on_the_command_line(tmp_path: Path) -> None:
    """Without data, its size is what is left; the notice names both."""
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\ntorch.manual_seed(0)\nm = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), "
        "torch.nn.Linear(8, 2)).double()\nx = torch.randn(8, 4).double()\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(2):\n    o.zero_grad(); l = m(x).square().mean(); l.backward(); o.step(); print(f'{l:.12f}')\n"
    )
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    command = ["run", "-n", "4", "--strategy", "mesh(shard=2,model=2)", "--json", str(script)]
    done = subprocess.run([sys.executable, "-m", "paceline", *command], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "parameters are split over 2 workers" in done.stderr
    lines = [line for line in done.stderr.splitlines() if line in plain.stdout.splitlines()]
    assert lines == plain.stdout.splitlines()
