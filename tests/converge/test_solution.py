"""What is measured of the solution that an unmodified loop ends in, and what is said where nothing can be."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from staged import lone_group, staged
from torch import Tensor, nn
from torch.func import functional_call

from paceline.converge.sharpness.solution import RADIUS, SolutionMeter
from paceline.record.sharpness import RunSharpness, read_sharpness, solution_path
from paceline.script.seams import instrument
from paceline.settings import SharpnessSettings


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models so small gain nothing from a second one, and wait for it on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextlib.contextmanager
def meter(folder: Path, **asked: Any) -> Iterator[SolutionMeter]:
    """A worker's stage with the meter on it; the script's end is the end of the block."""
    folder.mkdir(exist_ok=True)
    with staged(lone_group()) as stage:
        made = SolutionMeter(stage, folder, SharpnessSettings(**asked))
        remove = made.install()
        try:
            yield made
            stage.end()
        finally:
            remove()


def data(rows: int = 48) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(rows, 4, dtype=torch.float64)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def model_of(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), *more, nn.Linear(3, 2)).double()


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def train(model: nn.Module, loss_of: Loss, *, steps: int = 4, optimizer: Any = None) -> None:
    """As people write it."""
    x, y = data()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        rows = slice(12 * (step % 4), 12 * (step % 4) + 12)
        model.train()
        optimizer.zero_grad()
        loss_of(model, x[rows], y[rows]).backward()
        optimizer.step()


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def penalised(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    shifted = logits * 2
    shifted[:, 0] += logits[:, 1] ** 2
    shifted -= shifted.mean(1, keepdim=True) * 0.5
    noise = torch.randn_like(shifted) * 0.0
    total = nn.CrossEntropyLoss(reduction="none")(shifted + noise, y).mean()
    for parameter in model.parameters():
        total = total + 0.01 * parameter.pow(2).sum()
    return total


def accumulated(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    (cross_entropy(model, x[:6], y[:6]) / 2).backward()
    return cross_entropy(model, x[6:], y[6:]) / 2


def reference(model: nn.Module, loss_of: Loss) -> Tensor:
    """The whole Hessian of the mean loss, entry by entry, in float64."""
    x, y = data()
    model.eval()
    names, shapes = zip(*((name, p.shape) for name, p in model.named_parameters()), strict=True)
    buffers = dict(model.named_buffers())

    def at(flat: Tensor) -> Tensor:
        parts = [p.view(shape) for p, shape in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]
        weights = dict(zip(names, parts, strict=True))

        class Given(nn.Module):
            def forward(self, rows: Tensor) -> Tensor:
                return functional_call(model, weights | buffers, (rows,))

            def parameters(self, recurse: bool = True) -> Any:
                return iter(parts)

        return loss_of(Given(), x, y)

    return torch.autograd.functional.hessian(at, nn.utils.parameters_to_vector(model.parameters()).detach())


@pytest.mark.crossed("norm")
@pytest.mark.parametrize("loss_of", [cross_entropy, penalised])
@pytest.mark.parametrize("norm", [False, True])
def test_the_eigenvalue_of_a_loop_is_that_of_its_hessian(tmp_path: Path, loss_of: Loss, norm: bool) -> None:
    model = model_of(*[nn.BatchNorm1d(3)] * norm)
    with meter(tmp_path):
        train(model, loss_of, steps=12)
        stays = {name: value.clone() for name, value in model.state_dict().items()}
    found = read_sharpness(tmp_path)
    assert found is not None
    assert found.trouble == ""
    expected = torch.linalg.eigvalsh(reference(model, loss_of)).max().item()
    assert found.eigenvalue == pytest.approx(expected, rel=0.03)
    x, y = data()
    assert found.loss == pytest.approx(loss_of(model, x, y).item(), rel=1e-6)
    assert (found.samples, found.radius) == (12 * 12, RADIUS)
    assert found.moved is not None
    assert found.worst is not None
    assert found.worst >= found.moved > 0
    assert all(torch.equal(value, stays[name]) for name, value in model.state_dict().items()), "measuring changed it"


def test_several_backwards_are_one_loss(tmp_path: Path) -> None:
    model = model_of()
    with meter(tmp_path):
        train(model, accumulated)
    found = read_sharpness(tmp_path)
    assert found is not None
    x, y = data()
    assert found.loss == pytest.approx(cross_entropy(model, x, y).item(), rel=1e-6)


def test_only_the_last_batches_are_kept(tmp_path: Path) -> None:
    model = model_of()
    with meter(tmp_path, samples=20) as made:
        train(model, cross_entropy, steps=7)
        assert made.replay is not None
        assert len(made.replay.steps) == 2
    found = read_sharpness(tmp_path)
    assert found is not None
    x, y = data()
    last = slice(12, 36)  # of the sixth and the seventh step
    assert found.samples == 24
    assert found.loss == pytest.approx(cross_entropy(model, x[last], y[last]).item(), rel=1e-6)


def test_the_line_from_another_solution(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first, second = model_of(), model_of()
    with meter(one, keep=True):
        train(first, cross_entropy, steps=4)
    with meter(other, line_from=str(one)):
        train(second, cross_entropy, steps=8)
    assert solution_path(one).exists()
    assert not solution_path(other).exists()
    found = read_sharpness(other)
    assert found is not None
    line = dict(found.line)
    assert min(line) == -0.25
    assert max(line) == 1.25
    x, y = data()
    assert line[0.0] == pytest.approx(cross_entropy(first, x, y).item(), rel=1e-6)
    assert line[1.0] == pytest.approx(cross_entropy(second, x, y).item(), rel=1e-6)


def test_another_model_has_no_line(tmp_path: Path) -> None:
    with meter(tmp_path / "one", keep=True):
        train(model_of(), cross_entropy)
    with meter(tmp_path / "other", line_from=str(tmp_path / "one")):
        train(model_of(nn.Linear(3, 3)), cross_entropy)
    found = read_sharpness(tmp_path / "other")
    assert found is not None
    assert "different names or shapes" in found.trouble
    assert found.eigenvalue is not None


# -- what cannot be measured is said in words --------------------------------------------------------------------------


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Single(nn.Module):
    """Has no second derivative."""

    def forward(self, x: Tensor) -> Tensor:
        return Once.apply(x)


class Counting(nn.Module):
    """Another function at every call, without random numbers."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return x * Counting.calls


class Aux(nn.Module):
    """Returns more in training than in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model_of()

    def forward(self, x: Tensor) -> Any:
        return (self.inner(x), self.inner(x)) if self.training else self.inner(x)


def penalty_before(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    penalty = torch.stack([parameter.pow(2).sum() for parameter in model.parameters()]).sum()
    return cross_entropy(model, x, y) + 0.01 * penalty


def no_model(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(x @ next(iter(model.parameters())).T, y)


def written_over(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model, BUFFER.copy_(x), y)


BUFFER = torch.zeros(12, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("model", "loss_of", "says"),
    [
        (lambda: model_of(Counting()), cross_entropy, "replayed loss is"),
        (Aux, lambda model, x, y: F.cross_entropy(model(x)[0], y), "another structure in eval mode"),
        (model_of, penalty_before, "before the model was called"),
        (model_of, no_model, "no call of a module"),
        (lambda: model_of().bfloat16(), lambda m, x, y: cross_entropy(m, x.bfloat16(), y), "float32 or float64"),
    ],
)
def test_what_is_no_function_of_the_weights_is_said(tmp_path: Path, model: Any, loss_of: Loss, says: str) -> None:
    with meter(tmp_path):
        train(model(), loss_of)
    found = read_sharpness(tmp_path)
    assert found is not None
    assert says in found.trouble
    assert found.eigenvalue is None


def test_batches_that_were_written_over_are_left_out(tmp_path: Path) -> None:
    with meter(tmp_path):
        train(model_of(), written_over)
        BUFFER.zero_()
    assert read_sharpness(tmp_path) == RunSharpness(radius=RADIUS, trouble="not measured: the batches were overwritten")


def test_without_a_second_derivative_the_rest_is_measured(tmp_path: Path) -> None:
    with meter(tmp_path):
        train(model_of(Single()), cross_entropy)
    found = read_sharpness(tmp_path)
    assert found is not None
    assert found.trouble.startswith("no eigenvalue: ")
    assert found.eigenvalue is None
    assert found.moved is not None


def test_several_optimizers_and_closures_are_said(tmp_path: Path) -> None:
    model = model_of()
    with meter(tmp_path):
        for layer in (model[0], model[2]):  # type: ignore[index]
            train(model, cross_entropy, steps=1, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1))
    found = read_sharpness(tmp_path)
    assert found is not None
    assert "several optimizers" in found.trouble
    x, y = data()
    with meter(tmp_path):
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)
    found = read_sharpness(tmp_path)
    assert found is not None
    assert "closure" in found.trouble


def test_a_scaled_loss_is_said(tmp_path: Path) -> None:
    model, (x, y) = model_of(), data()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with meter(tmp_path):
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(cross_entropy(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
    found = read_sharpness(tmp_path)
    assert found is not None
    assert "scaled" in found.trouble
    assert found.eigenvalue is None


def test_dropout_is_off_and_the_loop_sees_the_same_numbers(tmp_path: Path) -> None:
    plain, watched = model_of(nn.Dropout(0.5)), model_of(nn.Dropout(0.5))
    torch.manual_seed(3)
    train(plain, cross_entropy)
    expected = torch.rand(2)
    with meter(tmp_path):
        torch.manual_seed(3)
        train(watched, cross_entropy)
        assert torch.equal(torch.rand(2), expected)
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    found = read_sharpness(tmp_path)
    assert found is not None
    assert found.trouble == ""
    x, y = data()
    assert found.loss == pytest.approx(cross_entropy(watched.eval(), x, y).item(), rel=1e-6)


def test_a_script_may_compile_where_our_modules_have_imported_torchs_names() -> None:
    """The compiler is told to leave our code alone, and only ours: of some of torch's it cannot be told."""
    model = model_of()
    with staged(lone_group()) as stage:
        instrument._keep_paceline_out_of_graphs(stage)
        assert model(torch.ones(2, 4, dtype=torch.float64)).shape == (2, 2)
