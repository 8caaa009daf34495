"""Workers that run as one share out the making of batches, and see what one worker would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from staged import lone_group, staged
from torch.utils.data import DataLoader, IterableDataset

import paceline.data as pd
from paceline.data import batch_sharing
from paceline.data.batch_sharing import can_join, is_worth_it
from paceline.errors import DataError, UsageError
from paceline.script.seams import api

LENGTH, BATCH = 23, 5  # the last batch has 3 rows: with 5 workers not one for each
LOOPS = 3


def make(number: int, generator: np.random.Generator) -> Any:
    return {"x": np.full(3, number, np.float32), "noise": generator.random(2), "name": f"n{number}", "number": number}


def pipelines(made: list[int], kind: Any) -> dict[str, pd.Pipeline]:
    def counted(number: int, generator: np.random.Generator) -> Any:
        made.append(number)
        return make(number, generator)

    def texts(number: int) -> str:
        return str(number)

    rows = list(range(LENGTH))
    told: dict[str, Any] = {"kind": kind} if kind == "auto" else {"kind": kind, "parallel": 2}
    return {
        "indexed": pd.items(rows).shuffle(seed=3).map_and_batch(counted, BATCH, seed=7, **told),
        "ahead": pd.items(rows).map_and_batch(counted, BATCH, seed=7, **told).prefetch(2),
        "stream": pd.stream(lambda: iter(rows)).shuffle(8).map_and_batch(texts, BATCH, **told),
        "dropped": pd.items(rows).map_and_batch(texts, BATCH, last="drop", **told),
    }


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(part) for name, part in batch.items()}
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@contextmanager
def run_as_one(group: Any, *, worth: bool = True, **run: Any) -> Iterator[Any]:
    with staged(group, **run) as stage:
        before = batch_sharing.is_worth_it
        batch_sharing.is_worth_it = lambda *args: worth
        api.take_stage(stage)
        try:
            yield stage
        finally:
            batch_sharing.is_worth_it, api._stage = before, None


def loops_of(group: Any, kind: Any, worth: bool = True) -> Any:
    """All batches of some loops over each pipeline, and how many samples this worker made in the last one."""
    with run_as_one(group, worth=worth):
        made: list[int] = []
        seen, last = {}, {}
        for name, pipeline in pipelines(made, kind).items():
            loops = []
            for _ in range(LOOPS):
                made.clear()
                loops.append([plain(batch) for batch in pipeline])
            seen[name], last[name] = loops, len(made)
            pipeline.close()
        return seen, last


@pytest.mark.parametrize(
    ("workers", "kind"),
    [(2, "threads"), (2, "processes"), (5, "threads"), pytest.param(5, "processes", marks=pytest.mark.slow)],
)
def test_every_worker_sees_the_batches_of_one_and_makes_its_own_rows(pool: Any, workers: int, kind: Any) -> None:
    alone, whole = loops_of(lone_group(), kind)
    found = pool(workers).run(loops_of, kind)
    for seen, _ in found:
        assert seen == alone
    if kind == "threads":  # else they are counted in another process
        assert whole["indexed"] == LENGTH
        made = [last["indexed"] for _, last in found]
        assert max(made) < LENGTH
        # One that has no row of the last batch borrows one.
        assert LENGTH <= sum(made) <= LENGTH + workers


def test_all_is_made_by_all_where_passing_it_on_costs_more(pool: Any) -> None:
    for seen, last in pool(2).run(loops_of, "threads", False):
        assert last["indexed"] == LENGTH
        assert len(seen["indexed"]) == LOOPS


def fails_of(group: Any) -> Any:
    with run_as_one(group):

        def bad(number: int) -> Any:
            if number == 14 and armed:
                raise ValueError("not a picture")
            return number

        armed: list[int] = []
        pipeline = pd.items(list(range(20))).map_and_batch(bad, 8, kind="threads", parallel=1)
        list(pipeline)
        armed.append(1)
        stream = iter(pipeline)
        first = next(stream).tolist()
        with pytest.raises(DataError, match=r"bad raised ValueError: not a picture, on sample 14\."):
            next(stream)
        pipeline.close()
        return first


def test_a_sample_that_one_worker_cannot_make_is_told_to_all(pool: Any) -> None:
    assert pool(2).run(fails_of) == [list(range(8))] * 2


def thread_of(group: Any) -> Any:
    with run_as_one(group):
        pipeline = pd.items(list(range(8))).map_and_batch(lambda n: n, 4, kind="threads", parallel=1)
        list(pipeline)
        stream = iter(pipeline)
        told: list[str] = []

        def go_on() -> None:
            try:
                next(stream)
            except UsageError as error:
                told.append(error.message)

        thread = threading.Thread(target=go_on)
        thread.start()
        thread.join()
        pipeline.close()
        return told


def test_a_loop_that_goes_on_in_another_thread_is_refused(pool: Any) -> None:
    for told in pool(2).run(thread_of):
        assert "continues in another thread" in told[0]


class Wrapped(IterableDataset[Any]):
    def __init__(self, pipeline: pd.Pipeline) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pipeline)


def inside_of(group: Any, processes: int) -> Any:
    """What comes of pipelines inside a DataLoader, and of one that gives samples, in the slice view."""
    with run_as_one(group, sliced=True):
        torch.nn.Linear(1, 1)
        batches = pd.items(list(range(8))).map_and_batch(lambda n: torch.full((2,), n), 4, kind="threads", parallel=1)
        loader = DataLoader(Wrapped(batches), batch_size=None, num_workers=processes)
        inside = [[batch[:, 0].tolist() for batch in loader] for _ in range(2)]
        single = [sample.tolist() for sample in pd.items(list(range(3))).map(lambda n: torch.full((4,), n))]
        batches.close()
        return inside, single


@pytest.mark.parametrize("processes", [0, 1])
def test_what_a_dataloader_reads_is_cut_once_and_samples_are_not_cut(pool: Any, processes: int) -> None:
    for rank, (inside, single) in enumerate(pool(2).run(inside_of, processes)):
        assert inside == [[[0, 1], [4, 5]] if rank == 0 else [[2, 3], [6, 7]]] * 2
        assert single == [[n] * 4 for n in range(3)]


SCRIPT = """
import torch, paceline.data as pd
from torch import nn

def double(number):
    made.append(number)
    return torch.tensor([number / 23]), torch.tensor([number / 11])

train = pd.items(list(range(23))).shuffle(seed=1).map_and_batch(double, 5, kind="threads", parallel=1)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for inputs, targets in train:
        loss = ((model(inputs) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(round(loss.item(), 5))
with torch.no_grad():
    print([round(value, 5) for inputs, _ in train for value in model(inputs)[:, 0].tolist()])
train.close()
"""


def losses_of(group: Any, view: str) -> Any:
    with run_as_one(group, sliced=view == "slice"):
        printed: list[Any] = []
        made: list[int] = []
        exec(SCRIPT, {"__name__": "script", "print": printed.append, "made": made})
        return printed, len(made)


@pytest.mark.parametrize("view", ["batch", "slice"])
def test_the_same_numbers_in_both_views(pool: Any, view: str) -> None:
    alone, whole = losses_of(lone_group(), view)
    for printed, made in pool(2).run(losses_of, view):
        assert made < whole
        assert len(printed) == len(alone)
        for mine, one in zip(printed, alone, strict=True):
            assert mine == pytest.approx(one, abs=2e-5)


def scaled_of(group: Any) -> Any:
    with run_as_one(group, batch="scale"):
        pipeline = pd.items(list(range(23))).map_and_batch(lambda n: (torch.tensor(n), str(n)), 4, kind="threads")
        found = [[(numbers.tolist(), texts) for numbers, texts in pipeline] for _ in range(2)]
        length = len(pipeline)
        pipeline.close()
        odd = pd.items(list(range(8))).map_and_batch(lambda n: {n}, 4)
        with pytest.raises(UsageError, match="--batch scale"):
            next(iter(odd))
        return found, length


def test_a_scaled_batch_is_as_many_as_there_are_workers(pool: Any) -> None:
    rows = list(range(23))
    expected = [(rows[at : at + 8], [str(n) for n in rows[at : at + 8]]) for at in (0, 8, 16)]
    for found, length in pool(2).run(scaled_of):
        assert found == [expected] * 2
        assert length == 3


def test_what_can_be_put_together() -> None:
    rows = torch.zeros(2, 3)
    assert can_join(rows)
    assert can_join({"x": rows, "name": ["a", "b"], "pair": (rows, [b"a", b"b"])})
    for batch in (torch.tensor(1.0), {}, [], [1, 2], {"x": rows, "y": None}, ["a", 1], [rows, 3], object()):
        assert not can_join(batch)


def test_what_is_worth_it() -> None:
    assert is_worth_it(0.5, 38e6, 2)
    assert not is_worth_it(0.001, 1e3, 2)
    assert not is_worth_it(0.05, 100e6, 8)
