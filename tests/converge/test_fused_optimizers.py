"""The fused forms of LARS and LAMB against the foreach forms. On a GPU, or without one in Triton's interpreter:

TRITON_INTERPRET=1 python -m pytest tests/converge/test_fused_optimizers.py
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pool import alone
from torch import nn

import paceline as pl
from paceline.comm.group import Group
from paceline.converge.optimizers import tensor_tables

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if INTERPRETED else [pytest.mark.gpu]

DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = [(70, 130), (64, 128), (130,), (3, 5, 3, 3), (0, 4), (), (2, 4096)]


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_tables, "DEVICES", (DEVICE,))


def tensors(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.randn(shape, device=DEVICE) for shape in SHAPES]
    made[3] = made[3].to(memory_format=torch.channels_last)
    made.append(torch.zeros(5, 7, device=DEVICE))  # a norm that is zero
    made.append(torch.randn(4101, device=DEVICE)[1:].view(2, 2050))  # memory that begins at an odd place
    return [nn.Parameter(t.to(dtype)) for t in made]


def gradients(like: list[nn.Parameter], step: int, scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(step + 1)
    made = [(torch.randn(p.shape, device=DEVICE) * scale).to(p.dtype) for p in like]
    made[1].zero_()
    return made


def run(optimizer: Any, parameters: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for number, (p, g) in enumerate(zip(parameters, gradients(parameters, step), strict=True)):
            p.grad = None if number == 2 and step == 1 else g
        optimizer.step()


LAMB: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}
LARS: dict[str, Any] = {"lr": 0.5, "weight_decay": 0.1}
CASES = [
    (pl.LAMB, LAMB),
    (pl.LAMB, LAMB | {"betas": (0.0, 0.9), "maximize": True, "adapt": True}),
    (pl.LAMB, LAMB | {"lr": torch.tensor(0.02), "adapt": False}),
    (pl.LARS, LARS),
    (pl.LARS, LARS | {"nesterov": True, "maximize": True, "adapt": True}),
    (pl.LARS, LARS | {"momentum": 0.0, "lr": torch.tensor(0.5)}),
]


@pytest.mark.parametrize(("kind", "settings"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_forms_make_the_same_steps(kind: Any, settings: dict[str, Any], dtype: torch.dtype) -> None:
    one, other = tensors(dtype), tensors(dtype)
    first, second = kind(one, **settings, fused=True), kind(other, **settings, fused=False)
    run(first, one, range(5))
    run(second, other, range(5))
    assert first._prepared
    assert not second._prepared
    for p, q in zip(one, other, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)
        elif p.numel():  # rounded at other places, and cut off by the interpreter
            assert (p - q).float().abs().mean() < (0.06 if INTERPRETED else 0.02)


def test_every_tensor_counts_its_own_steps_also_one_without_elements() -> None:
    one, other = tensors(), tensors()
    first, second = pl.LAMB(one), pl.LAMB(other, fused=False)
    run(first, one, range(3))
    run(second, other, range(3))
    counts = [int(first.state[p]["step"]) for p in one]
    assert counts == [int(second.state[p]["step"]) for p in other]
    assert set(counts) == {2, 3}
    assert not any(table.arrived.any() for table, _ in first._prepared[0].tables)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_settings_may_change_at_any_step_also_from_whole_numbers(kind: Any) -> None:
    one, other = tensors(), tensors()
    pair = kind(one, lr=1, weight_decay=0), kind(other, lr=1, weight_decay=0, fused=False)
    for step in range(8):
        for mine, optimizer in zip((one, other), pair, strict=True):
            for group in optimizer.param_groups:
                if step == 2:
                    group |= {"lr": 0.02, "weight_decay": 0.1}
                if step == 4:
                    group |= {"lr": torch.tensor(0.02), "maximize": True, "nesterov": True}
                if step == 6:
                    group |= {"lr": 0}
            run(optimizer, mine, range(step + 10, step + 11))
    for p, q in zip(one, other, strict=True):
        torch.testing.assert_close(p, q, rtol=5e-5, atol=5e-6)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_the_same_steps_again_are_the_same_to_the_last_digit(kind: Any) -> None:
    found = []
    for _ in range(2):
        mine = tensors()
        run(kind(mine, lr=0.02), mine, range(4))
        found.append(mine)
    for p, q in zip(*found, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_a_resumed_run_goes_on_exactly_also_from_the_other_form(kind: Any) -> None:
    mine = tensors()
    optimizer = kind(mine, lr=0.02)
    run(optimizer, mine, range(3))
    kept, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(mine)
    run(optimizer, mine, range(3, 6))
    for form in (None, False):
        again = copy.deepcopy(weights)
        other = kind(again, lr=0.02)
        run(other, again, range(2))
        for p, q in zip(again, weights, strict=True):
            p.data.copy_(q)
        other.load_state_dict(copy.deepcopy(kept))
        for group in other.param_groups:
            group["fused"] = form
        run(other, again, range(3, 6))
        for p, q in zip(mine, again, strict=True):
            if form is None:
                assert torch.equal(p, q)
            else:
                torch.testing.assert_close(p, q, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_state_that_was_cleared_begins_anew(kind: Any) -> None:
    one, other = tensors(), tensors()
    first, second = kind(one, lr=0.02), kind(other, lr=0.02)
    run(first, one, range(2))
    first.state.clear()
    for p, q in zip(one, other, strict=True):
        p.data.copy_(q)
    run(first, one, range(2, 4))
    run(second, other, range(2, 4))
    for p, q in zip(one, other, strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_a_scale_is_taken_out_and_a_broken_step_left_out(kind: Any) -> None:
    one, other = tensors(), tensors()
    first, second = kind(one, lr=0.02), kind(other, lr=0.02)
    assert first._step_supports_amp_scaling
    for step in range(4):
        grads = gradients(one, step)
        for p, g in zip(one, grads, strict=True):
            p.grad = g * 1024
        first.grad_scale = torch.tensor(1024.0, device=DEVICE)
        first.found_inf = torch.tensor(float(step == 2), device=DEVICE)
        first.step()
        if step != 2:
            for p, q, g in zip(one, other, grads, strict=True):
                q.grad = g.clone()
                torch.testing.assert_close(p.grad, g)
            second.step()
        del first.grad_scale, first.found_inf
    for p, q in zip(one, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_the_corrections_have_all_their_digits_from_the_first_step_on() -> None:
    w = nn.Parameter(torch.full((3, 3), 2.0, device=DEVICE))
    optimizer = pl.LAMB([w], lr=1.0, betas=(0.999, 0.9999), weight_decay=0.0, adapt=False, eps=1e-12)
    w.grad = torch.full_like(w, 0.25)
    optimizer.step()  # m̂ is the gradient and v̂ its square: the step is one
    torch.testing.assert_close(w.detach(), torch.ones_like(w), rtol=0, atol=2e-6)


def sharded_and_whole(group: Group, meeting: str) -> list[float]:
    """How far fused steps of shards are from foreach steps of whole tensors; what each tensor has counted."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    tensor_tables.DEVICES = ("cpu",)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=group.rank, world_size=group.world)
    mesh = init_device_mesh("cpu", (group.world,))
    found = []
    for kind in (pl.LAMB, pl.LARS):
        torch.manual_seed(0)
        whole = [nn.Parameter(torch.randn(shape)) for shape in ((90, 100), (5, 4), (7,), (1, 3))]
        parts = [nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in whole]
        first, second = kind(whole, lr=0.1, fused=False), kind(parts, lr=0.1, fused=True)
        for _ in range(3):
            for p, q, grad in zip(whole, parts, (torch.randn_like(p) for p in whole), strict=True):
                p.grad, q.grad = grad, distribute_tensor(grad.clone(), mesh, [Shard(0)])
            first.step()
            before = second._prepared.get(0)
            second.step()
            assert before in (None, second._prepared[0])
        found += [float((q.full_tensor() - p).detach().abs().max()) for p, q in zip(whole, parts, strict=True)]
        assert all(int(second.state[q].get("step", 3)) == 3 for q in parts)
    dist.destroy_process_group()
    return found


@pytest.mark.skipif(not INTERPRETED, reason="its workers would share a GPU")
def test_fused_steps_of_shards_are_those_of_whole_tensors(tmp_path: Path) -> None:
    with alone(2) as workers:
        for found in workers.run(sharded_and_whole, str(tmp_path / "meeting")):
            assert max(found) < 1e-5


@pytest.mark.skipif(INTERPRETED, reason="graphs are of GPUs")
@pytest.mark.parametrize("kind", [pl.LAMB, pl.LARS])
def test_a_captured_step_is_the_same_step(kind: Any) -> None:
    one, other = tensors(), tensors()
    first, second = kind(one, lr=0.02, capturable=True), kind(other, lr=0.02)
    for mine, optimizer in ((one, first), (other, second)):
        for p, g in zip(mine, gradients(mine, 0), strict=True):
            p.grad = g
        optimizer.step()
    static = gradients(one, 1)
    for p, g in zip(one, static, strict=True):
        p.grad = g
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first.step()
    for step in range(1, 5):
        for p, q, g in zip(one, other, gradients(one, step), strict=True):
            p.grad.copy_(g)
            q.grad = g
        graph.replay()
        second.step()
    for p, q in zip(one, other, strict=True):
        assert torch.equal(p, q)
