"""An exception inside a model that the script catches is raised on every worker or on none, and training goes on as in
plain Python: the same scenario is played here, by one process, and by a pool of workers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from staged import staged
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.utils.data import DataLoader, TensorDataset

from paceline.comm.channels import GlooChannel
from paceline.comm.group import Group
from paceline.errors import PeerRaisedError, ScriptError
from paceline.script.together import Raised, is_plain, rebuild

BAD = 9.0  # in the first column of a row that a model does not take


def data(batches: int = 6, size: int = 7, bad: tuple[int, ...] = (3, 16, 40)) -> torch.Tensor:
    x = torch.randn(batches * size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for row in bad:
        x[row, 0] = BAD
    return x.view(batches, size, 3)


class Net(nn.Module):
    """Raises for a bad row between its two layers; counts its calls and its rows before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 1).double()
        self.called = self.done = 0
        self.seen: list[torch.Tensor] = []
        for name in ("calls", "ends", "rows", "rows_done"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64 if name[-1] == "s" else torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.called += 1
        self.calls += 1
        self.rows += len(x)
        np.random.rand()
        h = torch.tanh(self.first(x))
        if (x[:, 0] == BAD).any():
            raise ValueError("bad row", int((x[:, 0] == BAD).sum()))
        np.random.rand(3)
        self.done += 1
        self.ends += 1
        self.rows_done += len(x)
        self.seen.append(h.detach())
        return self.second(h)

    def state(self) -> Any:
        buffers = [int(b) for b in (self.calls, self.ends, self.rows, self.rows_done)]
        return self.called, self.done, buffers, [tuple(h.shape) for h in self.seen], round(float(np.random.rand()), 9)


def bad_rows() -> list[Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for x in data():
        try:
            out = model(x)
        except ValueError as error:
            said.append((type(error).__name__, error.args, model.state()))
            continue
        loss = (out - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append((loss.item(), model.state()))
    return said


class Norms(nn.Module):
    """Raises before its batch norms, or between them."""

    def __init__(self, between: bool) -> None:
        super().__init__()
        self.between = between
        self.one, self.two = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
        self.layer = nn.Linear(3, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bad = bool((x[:, 0] == BAD).any())
        if bad and not self.between:
            raise ValueError("bad row")
        x = self.one(x)
        if bad:
            raise ValueError("bad row")
        return self.layer(self.two(torch.tanh(x)))


def norms(between: bool) -> list[Any]:
    torch.manual_seed(0)
    model = Norms(between)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for x in data():
        try:
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        except ValueError:
            said.append("skipped")
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            said.append(loss.item())
        said += [model.one.running_mean.tolist(), model.two.running_var.tolist(), int(model.two.num_batches_tracked)]
    return said


def evaluation() -> list[Any]:
    torch.manual_seed(0)
    model = Net().eval()
    said: list[Any] = []
    with torch.no_grad():
        for x in data():
            try:
                said.append(model(x).sum().item())
            except (RuntimeError, ValueError) as error:
                said.append(str(error))
    return said


def slices() -> list[Any]:
    """Losses, gradients and weights are of the whole batch also in the slice view."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for (x,) in DataLoader(TensorDataset(data().flatten(0, 1)), batch_size=7):
        try:
            loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        except ValueError as error:
            said.append(type(error).__name__)
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        said.append(loss.item())
    return [*said, *(p.sum().item() for p in model.parameters())]


class Hungry(nn.Module):
    """Has memory for so many rows."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit, self.layer = limit, nn.Linear(3, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self.layer(x)


def out_of_memory(batch: int, limit: int) -> list[Any]:
    torch.manual_seed(0)
    model = Hungry(limit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = data(bad=()).flatten(0, 1)
    said: list[Any] = []
    at = 0
    while at < len(x):
        try:
            rows = x[at : at + batch]
            loss = (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            batch //= 4
            said.append((type(error).__name__, batch))
            continue
        said.append(loss.item())
        at += batch
    return said


class Picky(torch.autograd.Function):
    """Raises in backward for a bad row."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        ctx.bad = bool((x[:, 0] == BAD).any())
        return h * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.bad:
            raise RuntimeError("bad gradient")
        return None, grad * 2


class PickyBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers[0](x)
        return self.layers[2](torch.tanh(self.layers[1](torch.tanh(Picky.apply(x, h)))))


def backward(bad: tuple[int, ...], micro_batches: int) -> list[Any]:
    torch.manual_seed(0)
    model = PickyBackward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[Any] = []
    for step, x in enumerate(data(12, bad=bad), 1):
        loss = (model(x) - x).pow(2).mean()
        try:
            loss.backward()
        except RuntimeError as error:
            said.append(str(error))
            optimizer.zero_grad()
            continue
        said.append(loss.item())
        if step % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [*said, *(p.sum().item() for p in model.parameters())]


def gradients_by_name() -> list[Any]:
    torch.manual_seed(0)
    model = PickyBackward()
    said: list[Any] = []
    for x in data():
        loss = (model(x) - x).pow(2).mean()
        try:
            found = torch.autograd.grad(loss, list(model.parameters()))
        except RuntimeError as error:
            said.append(str(error))
            continue
        said.append([grad.sum().item() for grad in found])
    return said


class Summed(nn.Module):
    """Its output is a sum over rows, which only the proof can tell."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x[:, 0] == BAD).any():
            raise ValueError("bad row")
        return self.layer(x).sum(0)


def first_batch() -> list[Any]:
    torch.manual_seed(0)
    model = Summed()
    said: list[Any] = []
    for x in data(bad=(6, 10)):
        try:
            out = model(x)
        except ValueError as error:
            said.append(str(error))
            continue
        out.sum().backward()
        said.append((out.tolist(), model.layer.weight.grad.sum().item()))
        model.layer.weight.grad = None
    return said


SCENARIOS: dict[str, tuple[Callable[..., list[Any]], tuple[Any, ...], dict[str, Any]]] = {
    "bad rows": (bad_rows, (), {}),
    "before batch norm": (norms, (False,), {}),
    "between batch norms": (norms, (True,), {}),
    "evaluation": (evaluation, (), {}),
    "slice view": (slices, (), {"sliced": True}),
    "backward": (backward, ((3, 16, 40, 79), 1), {}),
    "accumulated backward": (backward, ((75,), 2), {}),
    "gradients by name": (gradients_by_name, (), {}),
    "the first batch, of a sum": (first_batch, (), {}),
}


def on_workers(group: Group, name: str, gloo: bool = False) -> list[Any]:
    scenario, args, settings = SCENARIOS[name]
    with _over_gloo(group, name) if gloo else nullcontext(), staged(group, **settings):
        return scenario(*args)


@contextmanager
def _over_gloo(group: Group, name: str) -> Any:
    plain = group._channel
    group._channel = GlooChannel(PrefixStore(name, group._store), group.rank, group.world, address="127.0.0.1")
    try:
        yield
    finally:
        group._channel = plain


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_training_goes_on_as_in_plain_python_after_an_exception(pool: Any, name: str, world: int) -> None:
    scenario, args, _ = SCENARIOS[name]
    expected = scenario(*args)
    assert any(isinstance(said, (str, tuple)) for said in expected), "no exception was met"
    for found in pool(world).run(on_workers, name):
        _compare(found, expected)


@pytest.mark.parametrize("name", ["bad rows", "before batch norm", "slice view", "backward"])
def test_also_over_a_network_whose_collectives_carry_nothing(pool: Any, name: str) -> None:
    scenario, args, _ = SCENARIOS[name]
    expected = scenario(*args)
    for found in pool(2, "gloo").run(on_workers, name, True):
        _compare(found, expected)


class Hooked(nn.Module):
    """Sets a hook on a tensor in its forward, for which workers ask each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).tanh()
        y.register_hook(lambda grad: grad.clamp(-1, 1))
        return self.last(y)


def hooked_over_gloo(group: Group) -> str:
    with _over_gloo(group, "hooked"), staged(group) as stage:
        torch.manual_seed(0)
        Hooked()(torch.randn(8, 3)).sum().backward()
        return str(stage.views.refusal)


def test_what_workers_ask_each_other_is_no_operation_of_the_model(pool: Any) -> None:
    assert pool(2, "gloo").run(hooked_over_gloo) == ["None"] * 2


def _compare(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), (found, expected)
        for one, other in zip(found, expected, strict=True):
            _compare(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    else:
        assert found == expected


def memory(group: Group, batch: int, limit: int) -> list[Any]:
    with staged(group):
        return out_of_memory(batch, limit)


@pytest.mark.parametrize(("world", "batch", "limit"), [(2, 9, 4), (3, 8, 2)])
def test_memory_runs_out_on_every_worker_or_on_none(pool: Any, world: int, batch: int, limit: int) -> None:
    """Only the workers with the longest slices run out of it."""
    expected = out_of_memory(batch, limit)
    assert expected[0] == ("OutOfMemoryError", 2)
    for found in pool(world).run(memory, batch, limit):
        _compare(found, expected)


# -- the exception -----------------------------------------------------------------------------------------------------


class OwnError(ValueError):
    def __init__(self, row: int, rows: torch.Tensor) -> None:
        super().__init__(f"row {row} is bad")
        self.row, self.rows = row, rows


class Raises(nn.Module):
    """Raises what `make` makes, for this worker's rows."""

    def __init__(self, make: Callable[[int], BaseException], ranks: tuple[int, ...], rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.make, self.ranks, self.rank, self.armed = make, ranks, rank, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.armed and self.rank in self.ranks:
            raise self.make(self.rank)
        return self.layer(x)


def _local(rank: int) -> Exception:
    class LocalError(KeyError):
        pass

    return LocalError(f"of worker {rank}")


KINDS: dict[str, Callable[[int], Exception]] = {
    "builtin": lambda rank: ValueError("of worker", rank),
    "file": lambda rank: FileNotFoundError(2, "No such file", f"{rank}.jpg"),
    "own": lambda rank: OwnError(rank, torch.ones(2)),
    "memory": lambda rank: torch.OutOfMemoryError(f"of worker {rank}"),
    "local": _local,
    "not plain": lambda rank: TypeError(torch.zeros(1)),
}


def raised(group: Group, name: str, ranks: tuple[int, ...]) -> Any:
    with staged(group) as stage:
        model = Raises(KINDS[name], ranks, group.rank)
        model(torch.ones(6, 3))
        model.armed = True
        try:
            model(torch.ones(6, 3))
        except Exception as error:
            model.armed = False
            after = model(torch.ones(6, 3)).shape
            about = type(error).__mro__[1].__name__, type(error).__name__, str(error), getattr(error, "row", None)
            cause = type(error.__cause__), str(error.__cause__)
            return about, getattr(error, "filename", None), cause, tuple(after), stage.notices  # type: ignore[attr-defined]
    raise AssertionError("it did not raise")


@pytest.mark.parametrize("ranks", [(1,), (1, 2)])
@pytest.mark.parametrize("name", ["builtin", "file", "own", "memory"])
def test_all_workers_raise_what_the_first_one_raised(pool: Any, name: str, ranks: tuple[int, ...]) -> None:
    answers = pool(3).run(raised, name, ranks)
    error = KINDS[name](1)
    for rank, (about, filename, (cause, text), after, notices) in enumerate(answers):
        assert about == (type(error).__mro__[1].__name__, type(error).__name__, str(error), getattr(error, "row", None))
        assert filename == getattr(error, "filename", None)
        assert after == (6, 2)
        assert not notices
        if rank != 1:
            assert cause is PeerRaisedError
            assert "Worker 1 raised this" in text
            assert "in forward" in text


def test_an_exception_that_only_one_worker_has_met_is_a_runtime_error_elsewhere(pool: Any) -> None:
    answers = pool(2).run(raised, "local", (1,))
    assert [about[:3] for about, *_ in answers] == [
        ("Exception", "RuntimeError", "'of worker 1'"),
        ("KeyError", "LocalError", "'of worker 1'"),
    ]
    assert "LocalError, which the other workers cannot build" in answers[0][-1][0]


def test_arguments_that_are_not_plain_values_become_text(pool: Any) -> None:
    about = pool(2).run(raised, "not plain", (0,))[1][0]
    assert about[1:3] == ("TypeError", "tensor([0.])")


def _raised(**facts: Any) -> Raised:
    about = {"module": "builtins", "name": "ValueError", "text": "x", "args": ["x"], "attributes": {}, "trace": ""}
    return Raised(**about | {"told": [], "python": None, "numpy": [], "torch": []} | facts)


def test_a_peer_can_name_exceptions_only() -> None:
    assert isinstance(rebuild(_raised()), ValueError)
    for facts in ({"name": "SystemExit"}, {"name": "eval"}, {"module": "os", "name": "system"}, {"name": "Nothing"}):
        assert rebuild(_raised(**facts)) is None
    assert rebuild(_raised(name="UnicodeDecodeError", args=["x"])) is None, "its __init__ wants other arguments"


def interrupted(group: Group) -> str:
    """One worker only: the others wait for it, as today."""
    done: list[str] = []
    with staged(group) as stage:
        try:
            stage.together.do(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        except KeyboardInterrupt:
            done.append("interrupted")
        return done[0] + str(group.guarded)


def test_an_interrupt_is_nobody_elses(pool: Any) -> None:
    assert pool(2).run(interrupted) == ["interrupted0"] * 2


class Swallows(nn.Module):
    """Catches whatever its batch norm raises, and its own failure."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.norm, self.layer, self.rank, self.armed = nn.BatchNorm1d(3), nn.Linear(3, 1), rank, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.armed and self.rank == 1:
            raise ValueError("bad row")
        try:
            x = self.norm(x)
        except:  # noqa: E722
            pass
        return self.layer(x)


def swallowed(group: Group) -> list[Any]:
    said: list[Any] = []
    with staged(group):
        model = Swallows(group.rank)
        for step in range(4):
            model.armed = step == 2
            try:
                said.append(tuple(model(torch.randn(6, 3)).shape))
            except ValueError as error:
                said.append(str(error))
    return said


def test_a_model_cannot_keep_a_peers_failure_to_itself(pool: Any) -> None:
    assert pool(2).run(swallowed) == [[(6, 1), (6, 1), "bad row", (6, 1)]] * 2


# -- gradients that a backward has left --------------------------------------------------------------------------------


def goes_on(group: Group, steps: bool) -> str:
    torch.manual_seed(0)
    with staged(group):
        model = PickyBackward()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in data(bad=(3,)):
            try:
                (model(x) - x).pow(2).mean().backward()
            except RuntimeError:
                if not steps:
                    continue
            try:
                optimizer.step()
            except ScriptError as error:
                return str(error)
    return "nothing"


@pytest.mark.parametrize("steps", [True, False])
def test_gradients_of_a_backward_that_raised_are_not_used(pool: Any, steps: bool) -> None:
    if steps:
        for said in pool(2).run(goes_on, True):
            assert "steps with the gradients" in said
            assert "optimizer.zero_grad()" in said
    else:
        with pytest.raises(ScriptError, match="adds to the gradients"):
            pool(2, "refused").run(goes_on, False)


# -- the good case -----------------------------------------------------------------------------------------------------


def collectives(group: Group, view: str) -> list[int]:
    counts: list[int] = []
    with staged(group, sliced=view == "slice"):
        model = nn.Linear(3, 1).double()
        for (x,) in DataLoader(TensorDataset(data(bad=()).flatten(0, 1)), batch_size=7):
            before = group.pulse.collectives
            out = model(x)
            forward = group.pulse.collectives
            out.mean().backward()
            counts = [forward - before, group.pulse.collectives - forward]
    return counts


def test_nothing_more_is_exchanged_where_nothing_raises(pool: Any) -> None:
    """The gather of the outputs and the tail of the gradients tell; in the slice view a call has nothing that could."""
    rows, tail_and_bucket = 1, 2
    assert pool(2).run(collectives, "batch") == [[rows, tail_and_bucket]] * 2
    assert pool(2).run(collectives, "slice") == [[1, tail_and_bucket]] * 2


def test_only_plain_values_travel() -> None:
    assert is_plain((1, "a", [2.0, None, b"x"]))
    for value in (torch.zeros(1), np.float64(1), object(), {1: 2}, 1 << 70, [object()]):
        assert not is_plain(value)


# -- hooks on tensors --------------------------------------------------------------------------------------------------


class Doubling(nn.Module):
    """A hook that fails on one worker, as one that uses a tensor of its slice does where that is not a single row."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.layer, self.fails, self.seen = nn.Linear(3, 2).double(), fails, list[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layer(x))
        if y.requires_grad:
            y.register_hook(self.double)
        return y

    def double(self, grad: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(grad))
        if self.fails and len(grad) == 7:
            raise RuntimeError("the size of tensor a must match the size of tensor b")
        return 2 * grad


def doubled(group: Group | None, times: int = 1) -> tuple[list[float], list[int], list[str]]:
    with nullcontext() if group is None else staged(group) as stage:
        torch.manual_seed(0)
        model = Doubling(fails=group is not None and group.rank == 1)
        for _ in range(times):
            model.zero_grad()
            model(data()[0]).pow(2).sum().backward()
        assert model.layer.weight.grad is not None
        return model.layer.weight.grad.flatten().tolist(), model.seen, [] if stage is None else stage.notices


def test_a_hook_that_fails_on_one_worker_sees_slices_on_all(pool: Any) -> None:
    expected, *_ = doubled(None)
    found = pool(2).run(doubled)
    assert [seen[-1] for _, seen, _ in found] == [3, 4]
    for grads, _, notices in found:
        assert grads == pytest.approx(expected, rel=1e-12)
        assert any("sees the gradient of its worker's slice" in notice for notice in notices)


def test_a_hook_that_has_failed_once_is_not_called_twice_again(pool: Any) -> None:
    expected, *_ = doubled(None)
    for grads, seen, _ in pool(2).run(doubled, 3):
        assert grads == pytest.approx(expected, rel=1e-12)
        assert len(seen) == 1 + 3
        assert seen[0] == 7
        assert 7 not in seen[1:]
