"""What goes from process to process through shared memory is what was put there."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.execution.slots import LONG, Copied, Held, Pickler, Slot, Unpickler

texts = st.builds(lambda size, fill: bytes([fill]) * size, st.integers(0, 3 * LONG), st.integers(0, 255))
tensors = st.builds(lambda *shape: torch.rand(*shape), st.integers(0, 4), st.integers(1, 300))
arrays = st.builds(np.arange, st.integers(0, 300))
leaves = st.one_of(texts, tensors, arrays, st.integers(), st.text(max_size=5))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(texts, max_size=6),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=10,
)


@given(value=values, room=st.sampled_from([1 << 20, 4096, 64]), kind=st.sampled_from([Held, Copied]))
def test_the_same_comes_out(value: Any, room: int, kind: type[Held]) -> None:
    """Also where the slot is too small for some of it."""
    slot, file = Slot(room), io.BytesIO()
    Pickler(file, slot).dump(value)
    assert slot.used <= room
    made = Unpickler(io.BytesIO(file.getvalue()), kind(slot)).load()
    if kind is Copied:
        slot.memory[:] = bytes(room)
    assert_same(made, value)
    slot.close()


def test_long_texts_do_not_go_through_the_pipe() -> None:
    slot, file = Slot(1 << 20), io.BytesIO()
    Pickler(file, slot).dump({"one": bytes(LONG), "many": [bytes(100)] * 50, "one of many": [(bytes(LONG), 1)] * 9})
    assert len(file.getvalue()) < 1000
    slot.close()


@pytest.mark.parametrize("size", [10, 5000])
def test_texts_to_processes_and_back(size: int, nothing_left: None) -> None:
    given = [bytes([number]) * (size + number) for number in range(40)]
    with_lengths = pd.stream(lambda: iter(given)).map(backwards, kind="processes", parallel=2).batch(7)
    found = [(text, length) for batch in with_lengths for text, length in zip(batch[0], batch[1].tolist(), strict=True)]
    assert found == [(text[::-1], len(text)) for text in given]
    with_lengths.close()


def backwards(text: bytes) -> tuple[bytes, int]:
    return text[::-1], len(text)


def assert_same(made: Any, value: Any) -> None:
    assert type(made) is type(value)
    if isinstance(value, torch.Tensor):
        assert torch.equal(made, value)
    elif isinstance(value, np.ndarray):
        assert np.array_equal(made, value)
    elif isinstance(value, dict):
        assert list(made) == list(value)
        assert_same(list(made.values()), list(value.values()))
    elif isinstance(value, (list, tuple)):
        assert len(made) == len(value)
        for one, other in zip(made, value, strict=True):
            assert_same(one, other)
    else:
        assert made == value
