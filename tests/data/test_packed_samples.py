"""Packed samples: what was written is read again, and samples of one layout are decoded at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import paceline.data as pd
from paceline.data.formats.collate import collate, empty
from paceline.data.formats.sample import decode_together

NUMBERS = st.sampled_from([0, 1, 9, 127, 128, 255, 256, 70_000, 2**33, -1, -32, -33, -200, -70_000, -(2**40)])
LEAVES: dict[str, Any] = {
    "int": st.one_of(st.integers(0, 9), NUMBERS),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "text": st.text(max_size=40),
    "word": st.sampled_from(["cat", "dog", "cow"]),
    "bytes": st.binary(min_size=1, max_size=3),
    "none": st.none(),
}
ARRAYS = ["u1", "<f4", "<i8", ">i2", "?", "<c8", "<f8"]
SHAPES = [(), (3,), (2, 5), (1, 300), (0,)]


@st.composite
def samples(draw: st.DrawFn) -> list[Any]:
    """Samples of one kind: their leaves differ, in value or in length."""
    kinds = draw(st.lists(st.sampled_from([*LEAVES, "array", "tensor"]), min_size=1, max_size=4))
    told = [(draw(st.sampled_from(ARRAYS)), draw(st.sampled_from(SHAPES))) for _ in kinds]
    nest = draw(st.sampled_from(["tuple", "list", "dict", "deep", "alone"]))

    def leaf(kind: str, dtype: str, shape: tuple[int, ...]) -> Any:
        if kind in LEAVES:
            return draw(LEAVES[kind])
        count = int(np.prod(shape))
        raw = np.array(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count)))
        array = raw.reshape(shape).astype(dtype)
        return array if kind == "array" else torch.from_numpy(array.astype(np.dtype(dtype).newbyteorder("=")))

    made = []
    for _ in range(draw(st.integers(1, 5))):
        values = [leaf(kind, *shaped) for kind, shaped in zip(kinds, told, strict=True)]
        match nest:
            case "tuple":
                made.append(tuple(values))
            case "list":
                made.append(values)
            case "dict":
                made.append({f"key {number}": value for number, value in enumerate(values)})
            case "deep":
                made.append({"a": (values[0], [*values[1:]]), "b": {"c": values[-1]}})
            case _:
                made.append(values[0])
    return made


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype is other.dtype and torch.equal(one, other)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def equal(one: Any, other: Any) -> bool:
    """As a sample that is read again is to be: of the same types, dtypes, shapes and values."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    return same(one, other)


NESTED = st.recursive(
    st.one_of(*LEAVES.values(), st.integers(), st.binary(), st.text(max_size=200)),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


@given(sample=samples().map(lambda many: many[0]) | NESTED)
def test_a_sample_is_read_as_it_was_written(sample: Any) -> None:
    raw = pd.encode_sample(sample)
    back = pd.decode_sample(raw)
    assert equal(back, sample)
    assert pd.encode_sample(back) == raw


def test_a_sample_that_is_read_can_be_written_to() -> None:
    x, y = pd.decode_sample(pd.encode_sample((np.zeros(3), torch.zeros(2))))
    x[:], y[:] = 1, 2
    assert (x.tolist(), y.tolist()) == ([1, 1, 1], [2, 2])


@given(many=samples())
@example(many=[(np.zeros((3, 4), np.uint8), 7), (np.ones((3, 4), np.uint8), 3)])
@example(many=[(5, "ab"), (200, "c")])
@example(many=[(True, None), (False, None)])
def test_together_they_give_what_one_by_one_gives(many: list[Any]) -> None:
    raws = [pd.encode_sample(sample) for sample in many]
    together = decode_together(raws, empty)
    if together is not None:
        assert same(together, collate([pd.decode_sample(raw) for raw in raws]))


@pytest.mark.parametrize(
    ("many", "is_one_layout"),
    [
        ([(np.full((2, 2), n, np.float32), n) for n in range(5)], True),
        ([{"x": np.full(3, n), "word": w, "share": n / 7} for n, w in enumerate(("cat", "dog"))], True),
        ([(np.zeros(3), 5), (np.zeros(3), 500)], True),
        ([("cat", 5), ("horse", 5)], False),
        ([(np.zeros(2, np.int32), 1), (np.zeros(1, np.int64), 1)], False),
        ([(np.zeros(0), 1)], True),
        ([(), ()], False),
    ],
)
def test_samples_of_one_layout_are_decoded_at_once(many: list[Any], is_one_layout: bool) -> None:
    found = decode_together([pd.encode_sample(one) for one in many], empty)
    assert (found is not None) == is_one_layout


def test_sets_of_one_length_and_several_layouts_are_told_apart() -> None:
    one, other = (np.zeros(2, np.float32), 1), (np.zeros(1, np.float64), 1)
    assert len(pd.encode_sample(one)) == len(pd.encode_sample(other))
    for sample in (one, other, one):
        [made, _] = decode_together([pd.encode_sample(sample)] * 2, empty)
        assert tuple(made.shape) == (2, *sample[0].shape)


@given(raw=st.binary(min_size=1, max_size=60), times=st.integers(1, 3))
def test_what_is_no_sample_is_left_to_the_one_that_names_it(raw: bytes, times: int) -> None:
    made = decode_together([raw] * times, empty)
    if made is not None:
        assert same(made, collate([pd.decode_sample(raw)] * times))


def test_a_pipeline_takes_them_together(tmp_path: Any) -> None:
    pd.pack([(np.full((2, 2), n, np.float32), n) for n in range(20)], tmp_path / "packed")
    records = pd.files(f"{tmp_path}/packed/*.tfrecord").records()
    once = list(records.map_and_batch(pd.decode_sample, 6))
    single = list(records.map(lambda raw: pd.decode_sample(raw)).batch(6))
    assert same(once, single)
