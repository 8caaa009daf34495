"""Batches on their way to a device."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from paceline.data.cursor import Cursor
from paceline.data.device import Moved, StreamedCursor, copy
from paceline.data.meters import Meter


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


def test_what_goes_through_buffers_arrives_whatever_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a device: a batch lies in its buffer when it is given, and the next one in another."""
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
    assert len(made) == 2 * 3 + 2 * 2  # two a tensor, and again where more is needed
