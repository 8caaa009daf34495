"""Plain values: what is put in comes out, and nothing else can be put in."""

from __future__ import annotations

import os
import pickle
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.network import post

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(value=VALUES)
def test_a_value_comes_back_with_its_types(value: Any) -> None:
    back = post.decode(post.encode(value))
    assert back == value
    assert repr(back) == repr(value), "True is not 1, and 1 is not 1.0"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 7, dtype=torch.float64),
        torch.tensor([1 + 2j]),
        torch.tensor([True, False]),
    ],
)
def test_a_tensor_comes_back(tensor: torch.Tensor) -> None:
    (back,) = post.decode(post.encode([tensor]))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)
    back.copy_(tensor)  # its own memory, to be written to


def test_what_is_not_plain_is_refused() -> None:
    with pytest.raises(TypeError, match="plain"):
        post.encode([object()])


class Hostile:
    """What an attacker would send."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("owned",)


def test_a_pickle_is_not_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in range(6):
        try:
            post.decode(pickle.dumps(Hostile(), protocol))
        except msgspec.DecodeError:
            pass
    assert os.listdir(tmp_path) == []


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        post.decode(raw)
    except (msgspec.DecodeError, ValueError, RuntimeError):
        pass
