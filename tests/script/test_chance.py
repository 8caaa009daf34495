"""Whatever a script takes its chances from: its workers train the same model, or the run is refused and says why."""

from __future__ import annotations

import random
import re
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from staged import staged
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from paceline.comm.group import Group
from paceline.errors import PartedError
from paceline.script import chance, rng

# What a script draws numbers below 1 from. `clock()` is a clock that no two workers read alike.
EQUAL = {
    "random.Random()": "r = random.Random(); draw = r.random",
    "a subclass of random.Random": "class R(random.Random): pass\nr = R(); draw = r.random",
    "random.Random(clock)": "r = random.Random(clock()); draw = r.random",
    "random.seed()": "random.seed(); draw = random.random",
    "random.seed(clock)": "random.seed(clock()); draw = random.random",
    "random.seed(clock as a text)": "random.seed(str(clock())); draw = random.random",
    "random.seed(clock in seconds)": "random.seed(clock() / 7); draw = random.random",
    "numpy RandomState()": "r = np.random.RandomState(); draw = r.rand",
    "numpy Generator(PCG64())": "r = np.random.Generator(np.random.PCG64()); draw = r.random",
    "numpy SeedSequence()": "r = np.random.default_rng(np.random.SeedSequence()); draw = r.random",
    "numpy default_rng()": "r = np.random.default_rng(); draw = r.random",
    "numpy default_rng(clock)": "r = np.random.default_rng(clock()); draw = r.random",
    "numpy seed()": "np.random.seed(); draw = np.random.rand",
    "numpy seed(clock)": "np.random.seed(clock()); draw = np.random.rand",
    "torch.seed()": "torch.seed(); draw = lambda: torch.rand(1).item()",
    "torch.manual_seed(clock)": "torch.manual_seed(clock()); draw = lambda: torch.rand(1).item()",
    "torch.manual_seed(process)": "torch.manual_seed(os.getpid()); draw = lambda: torch.rand(1).item()",
    "torch Generator.seed()": "g = torch.Generator(); g.seed(); draw = lambda: torch.rand(1, generator=g).item()",
    "torch Generator.manual_seed(clock)": (
        "g = torch.Generator().manual_seed(clock()); draw = lambda: torch.rand(1, generator=g).item()"
    ),
    "SystemRandom": "r = random.SystemRandom(); draw = r.random",
    "SystemRandom.uniform": "r = random.SystemRandom(); draw = lambda: r.uniform(0, 1)",
    "SystemRandom.randrange": "r = random.SystemRandom(); draw = lambda: r.randrange(1000) / 1000",
    "os.urandom": "draw = lambda: int.from_bytes(os.urandom(4), 'big') / 2**32",
    "secrets.token_bytes": "draw = lambda: int.from_bytes(secrets.token_bytes(4), 'big') / 2**32",
    "secrets.token_hex": "draw = lambda: int(secrets.token_hex(4), 16) / 2**32",
    "secrets.randbits": "draw = lambda: secrets.randbits(32) / 2**32",
    "secrets.randbelow": "draw = lambda: secrets.randbelow(1000) / 1000",
    "secrets.choice": "draw = lambda: secrets.choice(range(1000)) / 1000",
    "uuid4": "draw = lambda: uuid.uuid4().int / 2**128",
    "uuid1": "draw = lambda: uuid.uuid1().int / 2**128",
}
FOUND = {
    "numpy RandomState(clock)": "r = np.random.RandomState(clock()); draw = r.rand",
    "numpy Generator(PCG64(clock))": "r = np.random.Generator(np.random.PCG64(clock())); draw = r.random",
    "the clock itself": "n = iter(range(1, 999)); draw = lambda: clock() * 2654435761 * next(n) % 2**32 / 2**32",
    "the process": "n = iter(range(1, 999)); draw = lambda: os.getpid() * 2654435761 * next(n) % 2**32 / 2**32",
    "a library's uuid4": "draw = lambda: lib.new_id().int / 2**128",
    "a library's random.Random()": "r = lib.new_random(); draw = r.random",
}
USES = {
    "weights": "    if step == 0:\n        model.weight.data += torch.tensor([draw() for _ in range(3)])",
    "gradients": "    model.weight.grad += torch.tensor([draw() for _ in range(3)])",
    "shuffling": "    x = torch.tensor(sorted(x.tolist(), key=lambda row: draw()))",
}
SCRIPT = """\
import os, random, secrets, uuid
import lib
import numpy as np
import torch
from torch import nn
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
x = torch.randn(12, 3)
{source}
model = nn.Linear(3, 1)
nn.init.constant_(model.bias, 0.1 * draw())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
{use}
    optimizer.step()
"""
LIBRARY = "import random, uuid\ndef new_id(): return uuid.uuid4()\ndef new_random(): return random.Random()\n"


@contextmanager
def started(group: Group, seed: int = 3, **run: Any) -> Iterator[Any]:
    """A stage on which the script's streams and chances begin, as in a run; all is as before afterwards."""
    before, dtype = rng.snapshot(), torch.get_default_dtype()
    with staged(group, **run) as stage:
        undo = rng.start(seed)
        try:
            yield stage
        finally:
            undo()
            chance._source = None
            torch.set_default_dtype(dtype)
            rng.restore(before)


def played(group: Group, folder: Path, text: str) -> tuple[str, list[float]]:
    """What stops the script on this worker, or else the model that it has trained."""
    library: dict[str, Any] = {"__name__": "lib"}
    exec(compile(LIBRARY, str(folder / "site-packages" / "lib.py"), "exec"), library)
    with started(group) as stage, pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "lib", type("lib", (), library))
        names: dict[str, Any] = {"__name__": "__main__", "clock": lambda: 1_700_000_000 + 977 * group.rank}
        try:
            exec(compile(text, str(folder / "script.py"), "exec"), names)
            stage.end()
        except PartedError as error:
            return str(error), []
        return "", [names["model"].bias.item(), *names["model"].weight.flatten().tolist()]


def write(source: str, use: str) -> str:
    return SCRIPT.format(source=source, use=use)


@pytest.mark.crossed("world")
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("source", list(EQUAL))
def test_the_workers_draw_alike(pool: Any, tmp_path: Path, source: str, world: int) -> None:
    first, *others = pool(world).run(played, tmp_path, write(EQUAL[source], "\n".join(USES.values())))
    assert first[0] == ""
    assert others == [first] * (world - 1)


@pytest.mark.crossed("way")
@pytest.mark.parametrize("way", [(use, world) for world in (2, 3) for use in USES], ids=str)
@pytest.mark.parametrize("source", list(FOUND))
def test_or_the_run_is_refused(pool: Any, tmp_path: Path, source: str, way: tuple[str, int]) -> None:
    use, world = way
    first, *others = pool(world).run(played, tmp_path, write(FOUND[source], USES[use]))
    assert others == [first] * (world - 1)
    what = "argument 0 of Linear, called at" if use == "shuffling" else "Linear.weight[0, 0] is"
    assert what in first[0]
    assert "script.py:" in first[0]


def test_a_seed_that_differs_later_is_named(pool: Any, tmp_path: Path) -> None:
    text = write("draw = random.random", "    torch.manual_seed(clock() if step == 2 else step)")
    for found, _ in pool(2).run(played, tmp_path, text):
        line = f"at {tmp_path}/script.py:"
        assert re.search(
            rf"seeds that the script sets differ .* worker 0 1700000000 {line}\d+, worker 1 1700000977 {line}", found
        ), found


def seeded_without_a_model(group: Group) -> str:
    with started(group) as stage, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chance, "SHARED", 0)
        torch.manual_seed(group.rank)
        try:
            stage.end()
        except PartedError as error:
            return str(error)
        return ""


def test_seeds_are_compared_at_the_end_of_a_script_without_a_model(pool: Any) -> None:
    assert all("worker 0 0 at" in found for found in pool(2).run(seeded_without_a_model))


# -- what must go on to differ -----------------------------------------------------------------------------------------


def names(group: Group, folder: Path) -> list[Any]:
    with started(group):
        library: dict[str, Any] = {"__name__": "lib"}
        exec(compile(LIBRARY, str(folder / "site-packages" / "lib.py"), "exec"), library)
        return [
            next(tempfile._get_candidate_names()),
            library["new_id"](),
            library["new_random"]().random(),
        ]


def test_names_of_temporary_files_and_ids_of_libraries_differ(pool: Any, tmp_path: Path) -> None:
    columns = list(zip(*pool(3).run(names, tmp_path), strict=True))
    assert [len(set(column)) for column in columns] == [3, 3, 3]


def asked(group: Group) -> list[Any]:
    with started(group):
        return [uuid.uuid4(), random.SystemRandom().random(), random.Random().random(), np.random.RandomState().rand()]


def test_ids_are_new_in_every_run_whatever_the_seed(pool: Any) -> None:
    first, second = pool(2).run(asked), pool(2).run(asked)
    assert first[0] == first[1]
    assert first[0][0].version == 4
    assert [a == b for a, b in zip(first[0], second[0], strict=True)] == [False, False, True, True]


def test_alone_the_operating_system_answers() -> None:
    before = uuid.uuid4, random.SystemRandom.random
    undo = rng.start(3)
    try:
        assert (uuid.uuid4, random.SystemRandom.random) == before
    finally:
        undo()
    assert uuid.uuid4 is before[0]


# -- nothing hangs, nothing is refused that is meant -------------------------------------------------------------------


def seeded_on_one_worker(group: Group) -> float:
    with started(group) as stage, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chance, "PATIENCE", 0.05)
        if group.rank == 1:
            torch.manual_seed(5)
        torch.manual_seed(6)
        model = nn.Linear(3, 1)
        model(torch.randn(4, 3)).sum().backward()
        stage.end()
        return float(model.weight.detach().sum())


def test_a_seed_that_only_one_worker_sets_keeps_nobody_waiting(pool: Any) -> None:
    first, second = pool(2).run(seeded_on_one_worker)
    assert first == second


class Seeded(Dataset):
    """Seeds each sample, as people do who want it the same whoever loads it."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        random.seed(index)
        return torch.rand(3, generator=torch.Generator().manual_seed(index))


class SeedsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = np.random.get_state()
        np.random.seed(int(x.abs().sum() * 1000))
        np.random.set_state(before)  # a stream that ended elsewhere than the batch's would make the module run whole
        return self.fc(x)


def seeds_that_may_differ(group: Group) -> list[str]:
    with started(group) as stage:
        model = SeedsItself()
        thread = threading.Thread(target=lambda: np.random.seed(group.rank))
        thread.start()
        thread.join()
        for batch in DataLoader(Seeded(), batch_size=4):
            model(batch).sum().backward()
        stage.end()
        return [notice for notice in stage.notices if "seed" in notice]


def test_seeds_of_samples_of_slices_and_of_threads_may_differ(pool: Any) -> None:
    assert pool(2).run(seeds_that_may_differ) == [[], []]


class Drawn(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        own = [np.random.default_rng().random(), random.Random().random(), int.from_bytes(uuid.uuid4().bytes) / 2**128]
        return torch.tensor([info.id, info.seed - torch.initial_seed(), *own], dtype=torch.float64)


def loaded(group: Group) -> list[list[float]]:
    with started(group):
        loader = DataLoader(Drawn(), batch_size=None, num_workers=2)
        return [row.tolist() for row in loader]


def test_processes_of_a_loader_draw_apart_and_alike_on_all_workers(pool: Any) -> None:
    first, second = pool(2).run(loaded)
    assert first == second
    assert [row[:2] for row in first] == [[0, 0], [1, 0], [0, 0], [1, 0]], "torch's own seeds: the base and the id"
    for column in list(zip(*first, strict=True))[2:]:
        assert len(set(column)) == 4
