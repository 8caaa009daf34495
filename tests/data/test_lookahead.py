"""A few batches at once for a GPU: the same ones, one after the other, and where they stand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data import device
from paceline.data.device import Lookahead
from paceline.data.planner import PipelinePlan
from paceline.data.planning.nodes import Cursor
from paceline.errors import DataError

GPU = torch.device("cuda", 0)


class Stream:
    """As far as a stream is asked here."""

    current: Stream

    def __init__(self) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


@pytest.fixture(autouse=True)
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    Stream.current = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream.current)
    return Stream.current


class Numbers(Cursor):
    """0, 1, 2, … of which some lie ready, and some cannot be made."""

    def __init__(self, count: int, ready: list[bool], bad: frozenset[int] = frozenset()) -> None:
        self.count, self.is_ready, self.bad = count, ready, bad
        self.next = 0
        self.waited_for: list[int] = []

    def take(self, count: int) -> list[Any]:
        if self.next == self.count:
            return []
        if not self.ready():
            self.waited_for.append(self.next)
        self.next += 1
        if self.next - 1 in self.bad:
            raise DataError(f"number {self.next - 1}")
        return [self.next - 1]

    def ready(self) -> bool:
        return self.next < len(self.is_ready) and self.is_ready[self.next]

    def mark(self) -> dict[str, Any]:
        return {"next": self.next}


@given(
    count=st.integers(0, 20),
    ready=st.lists(st.booleans(), max_size=20),
    bad=st.frozensets(st.integers(0, 20), max_size=3),
)
def test_one_after_the_other_whatever_lies_ready(count: int, ready: list[bool], bad: frozenset[int]) -> None:
    up = Numbers(count, ready, bad)
    cursor = Lookahead(up, GPU)
    assert cursor.mark() == {"next": 0}
    for expected in range(count):
        if expected in bad:
            with pytest.raises(DataError, match=f"number {expected}"):
                cursor.take(1)
            continue
        assert cursor.take(1) == [expected]
        assert cursor.mark() == {"next": expected + 1}
        assert all(number <= expected for number in up.waited_for)
    assert cursor.take(1) == []


def test_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    up = Numbers(100, [True] * 100)
    Lookahead(up, GPU).take(1)
    assert up.next == device.MOST
    monkeypatch.setattr(device, "size_of", lambda value: device.ROOM // 2)
    up = Numbers(100, [True] * 100)
    Lookahead(up, GPU).take(1)
    assert up.next == 2
    monkeypatch.setattr(device, "size_of", lambda value: 2 * device.ROOM)
    up = Numbers(100, [True] * 100)
    Lookahead(up, GPU).take(1)
    assert up.next == 1


def test_another_stream_waits_for_the_one_they_were_made_on(stream: Stream) -> None:
    cursor = Lookahead(Numbers(9, [True] * 9), GPU)
    cursor.take(2)
    other = Stream.current = Stream()
    cursor.take(1)
    assert other.waited_for == [stream]
    cursor.take(1)
    cursor.take(1)  # made on it
    assert other.waited_for == [stream] * 2
    assert not stream.waited_for


@pytest.mark.parametrize("stage", ["none", "prefetch"])
def test_a_pipeline_gives_and_resumes_the_same(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> pd.Pipeline:
        stream = pd.arrays(torch.arange(40)).shuffle(seed=3).batch(4)
        return stream.prefetch(3) if stage == "prefetch" else stream

    expected = [batch.tolist() for batch in made()]
    monkeypatch.setattr(PipelinePlan, "gpu", GPU)
    for after in range(len(expected) + 1):
        first = made()
        loop = iter(first)
        given = [next(loop).tolist() for _ in range(after)]
        second = made()
        second.restore(first.state())
        first.close()
        assert given + [batch.tolist() for batch in second] == expected
        second.close()
