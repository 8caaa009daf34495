"""A lost peer, workers that have parted and a refused script end the run, whatever the script catches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from staged import staged
from torch import nn

from paceline.comm.ending import Ending, Fatal
from paceline.comm.group import Group
from paceline.comm.pulse import Pulse
from paceline.errors import PacelineError, PartedError, ScriptError
from paceline.record import read_steps

Play = Callable[..., Any]
HANDLERS = ("except Exception", "except BaseException", "except")
SCRIPT = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from paceline.script.seams import api

rank = api.current().group.rank
data = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=6)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(data)

def step(number):
    global batches
    scale, (x,) = 1.0, next(batches)
    batches = iter(data)
    if number == 3:
        {fault}
    loss = model(x).pow(2).mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

number = caught = 0
while {condition}:
    try:
        step(number)
    {handler}:
        caught += 1
        print("caught", number, flush=True)
        {ending}
    number += 1
print("the end", flush=True)
"""
LINEAR = "model = nn.Linear(3, 2)"
REFUSED = 'torch.distributed.init_process_group("gloo")'
FAULTS = {  # what happens to worker 1 at step 3, and what a person reads
    "killed": ("rank == 1 and os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "left": ("rank == 1 and os._exit(0)", "exited with code 0 in the middle of its script"),
    "another batch": ("rank == 1 and next(iter(data))", "entered different collectives"),
    "another loss": ("scale += rank", "differ between the workers"),
}


def _script(fault: str, handler: str, *, model: str = LINEAR, condition: str = "True", ending: str = "pass") -> str:
    return SCRIPT.format(fault=fault, handler=handler, model=model, condition=condition, ending=ending)


@pytest.mark.parametrize(
    ("fault", "handler"),
    [
        # In the default run each once, and every handler.
        pytest.param(fault, handler, marks=[] if number % 3 == kind else [pytest.mark.slow])
        for number, fault in enumerate(FAULTS)
        for kind, handler in enumerate(HANDLERS)
    ],
)
def test_a_failure_of_the_run_cannot_be_caught(play: Play, fault: str, handler: str) -> None:
    """The script is an endless loop: only the launcher can end one that catches everything."""
    code, said = FAULTS[fault]
    played = play(_script(code, handler))
    assert played.outcome.exit_code != 0
    assert said in played.outcome.message
    assert "the end" not in played.printed
    assert len(list(read_steps(played.record, 0))) <= 3  # the last may not be written when the launcher ends it
    if handler == "except Exception":
        assert "caught" not in played.printed


@pytest.mark.parametrize("handler", [*(pytest.param(h, marks=pytest.mark.slow) for h in HANDLERS[:2]), HANDLERS[2]])
def test_a_refusal_cannot_be_caught(play: Play, handler: str) -> None:
    played = play(_script(REFUSED, handler))
    assert played.outcome.exit_code == 1
    assert "the script distributes itself" in played.outcome.message
    assert len(list(read_steps(played.record, 0))) <= 3


@pytest.mark.parametrize(
    "ending",
    [
        "raise RuntimeError('step failed')",
        *(pytest.param(ending, marks=pytest.mark.slow) for ending in ("sys.exit(0)", "number = 100")),
    ],
)
def test_a_script_that_ends_after_all_ends_with_the_first_cause(play: Play, ending: str) -> None:
    played = play(_script("rank == 1 and next(iter(data))", "except", condition="number < 10", ending=ending))
    assert played.outcome.exit_code == 1
    assert "entered different collectives" in played.outcome.message
    assert "step failed" not in played.outcome.message


def test_an_exception_that_nobody_catches_is_shown_from_the_worker_whose_rows_raised_it(play: Play) -> None:
    played = play(
        """
        import torch
        from torch import nn

        model, x = nn.Embedding(7, 3), torch.zeros(6, dtype=torch.int64)
        x = x.view(6, 1)
        for step in range(4):
            x[4] = 7 if step == 3 else 0
            model(x)
        """
    )
    assert played.outcome.exit_code == 1
    assert played.outcome.failed_rank == 1
    assert "in forward" in played.outcome.message
    assert "IndexError: index out of range" in played.outcome.message


# -- one worker --------------------------------------------------------------------------------------------------------


def test_the_first_failure_is_kept_and_told_once() -> None:
    told: list[str] = []
    pulse = Pulse()
    pulse.on_failure = lambda error: told.append(str(error))
    ending = Ending(pulse)
    ending.check()
    ending.stern = True
    first = ending.carry(PartedError("first"))
    assert isinstance(first, Fatal)
    assert not isinstance(first, Exception)
    assert str(ending.carry(ScriptError("second"))) == str(first) == "first"
    with pytest.raises(Fatal, match="first"):
        ending.check()
    assert told == ["first"]


def test_with_the_api_errors_stay_ordinary_exceptions() -> None:
    ending, error = Ending(), PartedError("parted")
    assert ending.carry(error) is error
    assert ending.first is None
    ending.check()


class Swallows(torch.autograd.Function):
    """Its backward calls a collective that has failed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise ctx.group.ending.carry(PartedError("parted in backward"))


def everywhere(group: Group) -> list[str]:
    """Every seam raises the first failure again, however often it is caught; the first leaves autograd as it is."""
    met: list[str] = []

    def meet(seam: Callable[[], Any]) -> None:
        try:
            seam()
        except BaseException as error:
            met.append(f"{type(error).__name__} {str(error).split()[-1]}")

    with staged(group) as stage:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.ones(4, 3))
        loss, following = model(torch.ones(4, 3)).sum(), iter(loader)
        stage.ending.stern = True
        meet(lambda: Swallows.apply(model(torch.ones(4, 3)), group).sum().backward())
        meet(lambda: model(torch.ones(4, 3)))
        meet(loss.backward)
        meet(lambda: torch.autograd.grad(loss, list(model.parameters())))
        meet(optimizer.step)
        meet(lambda: torch.optim.SGD(model.parameters(), lr=0.1))
        meet(lambda: next(following))
        meet(lambda: iter(loader))
        meet(lambda: len(loader))
        meet(lambda: torch.save(1, "/dev/null"))
        meet(lambda: group.gather_vectors(torch.ones(1), "a collective"))
        meet(stage.end)
    return met


def test_every_seam_raises_the_first_failure_again(pool: Any) -> None:
    for met in pool(2, "fatal").run(everywhere):
        assert met == ["Fatal backward"] * 11 + ["PartedError backward"]


def carried(group: Group) -> Any:
    with staged(group):
        try:
            (nn.Linear(3, 1)(torch.ones(4, 3)).sum() * group.rank).backward()
        except PacelineError as error:
            return type(error).__name__
    return "nothing"


def test_without_a_launcher_a_script_may_catch_it(pool: Any) -> None:
    assert pool(2).run(carried) == ["PartedError"] * 2
