"""Batches on their way to a device."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest
import torch

from paceline.data.device import Moved, StreamedCursor, copy
from paceline.data.execution.slots import STEP, Pinned, Slot
from paceline.data.meters import Meter
from paceline.data.planning.nodes import Cursor


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (4, 3, 5)])
def test_a_copy_is_the_same_of_every_kind_and_layout(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    source = (torch.rand(shape) * 9).to(dtype)
    for given in (source, source.mT if source.dim() > 1 else source, source.requires_grad_(dtype.is_floating_point)):
        target = torch.empty(given.shape, dtype=dtype)
        copy(given.detach() if not given.is_contiguous() else given, target)
        assert torch.equal(target, given)


def test_what_is_computed_when_it_is_read_is_copied_as_it_reads() -> None:
    source = torch.rand(4, dtype=torch.complex64)
    for given in (source.conj(), source.conj().imag):
        target = torch.empty(given.shape, dtype=given.dtype)
        copy(given, target)
        assert torch.equal(target, given)


class Batches(Cursor):
    """These, one after the other."""

    def __init__(self, batches: list[Any]) -> None:
        self._left = list(batches)

    def take(self, count: int) -> list[Any]:
        return [self._left.pop(0)] if self._left else []

    def mark(self) -> dict[str, Any]:
        return {"left": len(self._left)}


class Instant:
    """A stream, or an event of one, on which everything is done at once."""

    def __init__(self, *_: Any) -> None: ...

    def record(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: Any) -> None: ...


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stands for a GPU; the sizes of what was pinned there."""
    made, ordinary = [], torch.empty

    def empty(*shape: Any, pin_memory: bool = False, **told: Any) -> torch.Tensor:
        made.extend([shape] if pin_memory else [])
        return ordinary(*shape, **told)

    for name, fake in {
        "Stream": Instant,
        "Event": Instant,
        "stream": contextlib.nullcontext,
        "current_stream": Instant,
        "current_device": lambda: 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: False)
    return made


def test_what_goes_through_buffers_arrives_whatever_its_shape(no_device: list[Any]) -> None:
    """A batch lies in its buffer when it is given, and the next one in another."""
    sizes = [4, 4, 4, 3, 5, 5, 4]
    batches = [{"x": torch.rand(n, 2, 3), "y": torch.rand(3, n).T, "name": f"{n}", "z": torch.tensor(n)} for n in sizes]
    cursor = StreamedCursor(Moved("cpu", Meter("to")), Batches(batches))
    left = len(sizes)
    for expected in batches:
        (given,) = cursor.take(1)
        left -= 1
        assert cursor.mark() == {"left": left}
        assert list(given) == list(expected)
        assert given["name"] == expected["name"]
        for name in "xyz":
            assert torch.equal(given[name], expected[name])
    assert cursor.take(1) == []
    assert len(no_device) == 2 * 3 + 2 * 2  # two a tensor, and again where more is needed


class Driver:
    """What pins memory, and refuses to where it overlaps, as the real one does."""

    def __init__(self, room: int) -> None:
        self.room, self.pinned = room, dict[int, int]()
        self.calls = 0

    def cudaHostRegister(self, begin: int, size: int, flags: int) -> int:
        self.calls += 1
        assert not any(begin < at + held and at < begin + size for at, held in self.pinned.items())
        if size > self.room:
            return 2
        self.pinned[begin] = size
        return 0

    def cudaHostUnregister(self, begin: int) -> int:
        del self.pinned[begin]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(1 << 40)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_slots_are_pinned_as_far_as_batches_reach(driver: Driver) -> None:
    pinned = Pinned([Slot(5 * STEP // 2), Slot(5 * STEP // 2)])
    for number, end in ((0, 1), (0, STEP), (1, 7), (0, 2)):
        pinned.reach(number, end)
    assert list(driver.pinned.values()) == [STEP, STEP]
    assert driver.calls == 2
    pinned.reach(1, 2 * STEP + 1)  # … and no further than the slot
    assert sorted(driver.pinned.values()) == [STEP, 5 * STEP // 2]
    pinned.release()
    assert not driver.pinned


def test_a_system_that_does_not_pin_is_asked_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.room = 0
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: None)  # to which the driver tells the error once more
    pinned = Pinned([Slot(STEP), Slot(STEP)])
    for number in (0, 1, 0):
        pinned.reach(number, 9)
    assert driver.calls == 1
    pinned.release()


def test_what_lies_in_pinned_memory_is_kept_until_it_is_copied(no_device: list[Any]) -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    class Fresh(Cursor):
        def take(self, count: int) -> list[Any]:
            assert sum(ref() is not None for ref in alive) <= 2  # the third may take the place of the first
            source = torch.rand(3)
            alive.append(weakref.ref(source))
            return [source]

        def mark(self) -> dict[str, Any]:
            return {}

    cursor = StreamedCursor(Moved("cpu", Meter("to")), Fresh())
    cursor._lies_pinned = lambda leaf: True  # type: ignore[method-assign]
    cursor._device = torch.device("meta")  # what is given does not keep its source
    for number in range(6):
        cursor.take(1)
        assert [ref() is not None for ref in alive[-2:]] == [True, True]
        assert len(alive) == number + 2
    assert not no_device  # no buffer
