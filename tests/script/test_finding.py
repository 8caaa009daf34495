"""Finding the seams of an unmodified script: each is passed once, at its moment, and taken out without a trace."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from staged import lone_group, staged
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from paceline.comm.call_site import script_line
from paceline.comm.group import Group
from paceline.script.draws.table import TABLE
from paceline.script.seams import instrument
from paceline.script.seams.stage import SEAMS, Stage, call_site
from paceline.settings import RunSettings
from paceline.torch_private import bindings

PATCHED: list[tuple[Any, str]] = [
    (nn.Module, "__call__"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.optim.Optimizer, "__init__"),
    (torch, "compile"),
    (torch, "save"),
    (torch, "vmap"),
    (torch.func, "vmap"),
    (torch.utils.checkpoint, "checkpoint"),
    (torch.Tensor, "item"),
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "retain_grad"),
    (torch.Tensor, "retains_grad"),
    (torch.Tensor, "__float__"),
    (_MapDatasetFetcher, "fetch"),
    (_BaseDataLoaderIter, "__next__"),
    (_BaseDataLoaderIter, "_next_index"),
    (DataLoader, "__iter__"),
    (DataLoader, "__len__"),
    (DataLoader, "check_worker_number_rationality"),
    *((F, name) for name in ("cross_entropy", "nll_loss", "batch_norm", "one_hot")),
    (bindings, "_pad_packed_sequence"),
    *((owner, name) for owner, name, _ in TABLE),
]


class Diary:
    """Writes down every seam that is passed, and what stands there."""

    def __init__(self) -> None:
        self.seams: list[str] = []
        self.given: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name not in SEAMS:
            raise AttributeError(name)

        def write(*given: Any) -> None:
            self.seams.append(name)
            self.given.append(given)

        return write


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()


def test_a_training_loop_passes_the_seams_in_order() -> None:
    diary = Diary()
    with staged(lone_group(), listeners=(diary,)) as stage:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
        for (x,) in loader:
            step(model, optimizer, x)
        torch.save(model.state_dict(), io.BytesIO())
        stage.end()
    once = ["before_forward", "after_forward", "before_backward", "after_backward", "before_step", "after_step"]
    assert diary.seams == [
        "on_optimizer",
        "on_loader",
        "on_batch",
        "on_model",
        *once,
        "on_batch",
        *once,
        "on_save",
        "on_end",
    ]


def test_listeners_get_what_stands_at_the_seam() -> None:
    diary = Diary()
    with staged(lone_group(), listeners=(diary,)):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model(torch.ones(2, 2)).sum()
        loss.backward()
        optimizer.step()
        torch.save(1, target := io.BytesIO())
    given = dict(zip(diary.seams, diary.given, strict=True))
    assert given["on_optimizer"] == (optimizer,)
    assert given["on_model"] == given["before_forward"] == given["after_forward"] == (model,)
    assert given["before_backward"][0][0] is loss
    assert given["after_step"] == (optimizer,)
    assert given["on_save"] == (target,)


def patches(group: Group) -> tuple[list[bool], list[bool]]:
    before = [getattr(owner, name) for owner, name in PATCHED]
    with staged(group, autotune=False):
        during = [getattr(owner, name) for owner, name in PATCHED]
    after = [getattr(owner, name) for owner, name in PATCHED]
    return [a is not b for a, b in zip(before, during, strict=True)], [
        a is b for a, b in zip(before, after, strict=True)
    ]


def test_every_patch_is_taken_out_again(pool: Any) -> None:
    for put_in, taken_out in pool(2).run(patches):
        assert all(put_in), "the list of patches above is out of date"
        assert all(taken_out)


def other_patches(group: Group) -> list[set[str]]:
    owners = {id(owner): owner for owner, _ in PATCHED}.values()
    before = [dict(vars(owner)) for owner in owners]
    with staged(group, autotune=False):
        during = [dict(vars(owner)) for owner in owners]
    return [
        {name for name in new if new[name] is not old.get(name)} ^ {name for o, name in PATCHED if o is owner}
        for owner, old, new in zip(owners, before, during, strict=True)
    ]


def test_nothing_else_of_torch_is_patched(pool: Any) -> None:
    """Attributes that this test doesn't know would not be taken out either."""
    for others in pool(2).run(other_patches):
        assert not any(others)


def test_a_module_that_is_a_part_of_another_has_one_name() -> None:
    """Whichever of them comes first: the set of the modules that were called has another order on each worker."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with staged(lone_group()) as stage:
        for roots in ([model, model[1]], [model[1], model]):
            stage.roots = roots  # type: ignore[assignment]
            assert stage.views.path_of(model[1]) == "1"


def test_one_worker_does_not_pay_for_what_is_between_workers() -> None:
    between = [(torch.autograd, "grad"), (torch.Tensor, "item"), (F, "cross_entropy")]
    before = [getattr(owner, name) for owner, name in between]
    with staged(lone_group()):
        assert [getattr(owner, name) for owner, name in between] == before


def test_step_hooks_are_taken_out_again() -> None:
    diary = Diary()
    with staged(lone_group(), listeners=(diary,)):
        pass
    model = nn.Linear(2, 1)
    step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(2, 2))
    assert diary.seams == []


# -- which calls are outermost -----------------------------------------------------------------------------------------


def seams_of(script: Callable[[], Any]) -> list[str]:
    diary = Diary()
    with staged(lone_group(), listeners=(diary,)):
        script()
    return diary.seams


def calls_of(script: Callable[[], Any]) -> int:
    return seams_of(script).count("before_forward")


def test_only_the_outermost_call_is_a_seam() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    assert calls_of(lambda: model(torch.ones(1, 2))) == 1


def test_modules_without_parameters_are_no_seam() -> None:
    assert calls_of(lambda: nn.MSELoss()(nn.Dropout()(torch.ones(2)), torch.ones(2))) == 0


def test_a_frozen_model_still_is() -> None:
    assert calls_of(lambda: nn.Linear(2, 2).requires_grad_(False)(torch.ones(1, 2))) == 1


def test_a_model_is_met_once_and_called_often() -> None:
    model = nn.Linear(2, 2)
    seams = seams_of(lambda: [model(torch.ones(1, 2)) for _ in range(3)])
    assert seams.count("on_model") == 1
    assert seams.count("before_forward") == 3


def test_a_module_that_got_its_parameters_late_is_found() -> None:
    class Late(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if not hasattr(self, "layer") else self.layer(x)

    def script() -> None:
        model = Late()
        model(torch.ones(1, 2))
        model.layer = nn.Linear(2, 2)
        model(torch.ones(1, 2))

    assert calls_of(script) == 1


def test_a_traced_call_is_no_seam() -> None:
    assert calls_of(lambda: torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2), check_trace=False)) == 0


# -- backwards ---------------------------------------------------------------------------------------------------------


def backwards_of(script: Callable[[], Any]) -> int:
    return seams_of(script).count("after_backward")


def weight() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("script", "backwards"),
    [
        (lambda: weight().sum().backward(), 1),
        (lambda: torch.autograd.backward(weight().sum()), 1),
        (lambda: torch.autograd.backward([weight().sum(), weight().sum()]), 1),
        (lambda: torch.autograd.backward((weight() * 2,), (torch.ones(2),)), 1),
        (lambda: (weight() * 2).backward(torch.ones(2)), 1),
        (lambda: weight().sum().backward(None, True), 1),
        (lambda: weight().sum().backward(retain_graph=True, create_graph=False), 1),
        (lambda: torch.autograd.grad(weight().sum() * 0 + (w := weight()).sum(), w), 0),
    ],
    ids=["method", "function", "list", "tuple with gradients", "with a gradient", "positional", "named", "grad"],
)
def test_a_backward_is_a_seam_however_it_is_written(script: Callable[[], Any], backwards: int) -> None:
    assert backwards_of(script) == backwards


def test_inputs_of_a_backward_are_passed_on() -> None:
    a, b = weight(), weight()
    with staged(lone_group()):
        (a * b).sum().backward(inputs=[a])
    assert a.grad is not None
    assert b.grad is None


def test_a_backward_inside_a_call_or_inside_another_is_the_scripts_own_business() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                (x**2).sum().backward()
            return self.layer(x.grad)

    model = Inner()
    assert backwards_of(lambda: model(torch.ones(1, 2)).sum().backward()) == 1
    layer = nn.Linear(2, 2)

    def reentrant() -> None:
        x = torch.ones(1, 2, requires_grad=True)
        torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True).sum().backward()

    assert backwards_of(reentrant) == 1


# -- exceptions --------------------------------------------------------------------------------------------------------


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.fails = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise KeyError("not today")
        return self.layer(x)


def state(stage: Stage) -> tuple[Any, ...]:
    return stage.depth, stage.backward_depth, stage.watch.phase, stage.views.split


def after_failures(group: Group) -> tuple[list[Any], torch.Tensor]:
    """Exceptions that the script catches, in a call, in a backward and in a loader; then it goes on."""
    states = []
    with staged(group) as stage:
        model = Failing()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(KeyError):
            model(torch.ones(4, 2))
        states.append(state(stage))
        model.fails = False
        loss = model(torch.ones(4, 2)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        states.append(state(stage))
        with pytest.raises(StopIteration):
            next(iter(DataLoader(TensorDataset(torch.ones(0, 2)))))
        states.append(state(stage))
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        return states, model.layer.bias.grad


@pytest.mark.parametrize("world", [1, 2])
def test_an_exception_that_the_script_catches_leaves_the_stage_as_it_was(pool: Any, world: int) -> None:
    for states, grad in pool(world).run(after_failures):
        assert states == [(0, 0, "other", None)] * 3
        assert torch.equal(grad, torch.full((2,), 4.0))


def test_a_step_that_fails_does_not_keep_the_clock_of_the_optimizer_running() -> None:
    with staged(lone_group()) as stage:
        optimizer = torch.optim.SGD([weight()], lr=0.1)
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        optimizer.step()
        assert stage.watch.phase == "other"


# -- aside, and only some ----------------------------------------------------------------------------------------------


def test_a_stage_that_has_stepped_aside_passes_no_call_and_no_backward() -> None:
    diary = Diary()
    with staged(lone_group(), listeners=(diary,)) as stage:
        stage.aside = True
        nn.Linear(2, 1)(torch.ones(1, 2)).sum().backward()
    assert diary.seams == []


def test_with_the_api_only_the_given_modules_are_distributed() -> None:
    ours, theirs = nn.Linear(2, 1), nn.Linear(2, 1)
    diary, group = Diary(), lone_group()
    stage = Stage(RunSettings(script=""), group, only=[ours])
    stage.subscribe(diary)
    lose = instrument.find(stage)
    try:
        theirs(torch.ones(1, 2))
        ours(torch.ones(1, 2))
    finally:
        lose()
    assert diary.given[0] == (ours,)
    assert diary.seams == ["on_model", "before_forward", "after_forward"]


# -- work that was not split -------------------------------------------------------------------------------------------


def unsplit(group: Group, backwards: int, whole: tuple[str, ...] = ()) -> list[str]:
    with staged(group, whole=whole) as stage:
        w = weight()
        for _ in range(backwards):
            (w**2).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == (2 * backwards * w).tolist()
        stage.end()
        return stage.notices


@pytest.mark.parametrize("backwards", [1, 2, 3])
def test_a_script_whose_work_is_never_split_runs_whole_and_says_so(pool: Any, backwards: int) -> None:
    for notices in pool(2).run(unsplit, backwards):
        (notice,) = (n for n in notices if "Nothing is split" in n)
        assert "crossed no module call that could be split" in notice
        assert "test_finding.py" in notice or "script's end" in notice
        assert "2 workers are no faster than one" in notice


def test_on_one_worker_it_is_nobodys_business(pool: Any) -> None:
    assert pool(1).run(unsplit, 3) == [[]]


def test_a_script_that_is_asked_to_run_a_module_whole_has_said_so(pool: Any) -> None:
    assert pool(2).run(unsplit, 3, ("Something",)) == [[], []]


def split_and_not(group: Group) -> None:
    with staged(group) as stage:
        model, w = nn.Linear(2, 1), weight()
        model(torch.ones(4, 2)).sum().backward()
        for _ in range(3):
            (w**2).sum().backward()
        stage.end()


def test_a_penalty_of_its_own_beside_work_that_was_split_is_fine(pool: Any) -> None:
    pool(2).run(split_and_not)


# -- places in the script ----------------------------------------------------------------------------------------------


def test_places_are_told_apart_by_line_and_by_caller() -> None:
    def here() -> int:
        return call_site()

    sites = [here() for _ in range(2)]
    assert sites[0] == sites[1]
    assert here() != sites[0]


def test_the_line_of_the_script_is_named() -> None:
    name, number = script_line().rsplit(":", 1)
    assert name.endswith("test_finding.py")
    assert int(number) > 0
