"""Examples, however they are written: what is known from others is read as if it were seen for the first time."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.formats import tf_example
from paceline.data.formats.tf_example import Layouts, UnusualError, decode_any, decode_example, encode_example
from paceline.errors import DataError

# -- written from the definition, in all the ways that it allows -------------------------------------------------------


def varint(value: int) -> bytes:
    digits = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


def counted(number: int, raw: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def bytes_list(values: list[bytes]) -> bytes:
    return counted(1, b"".join(counted(1, value) for value in values))


def floats_list(values: list[float], packed: bool) -> bytes:
    raws = [struct.pack("<f", value) for value in values]
    return counted(2, counted(1, b"".join(raws)) if packed else b"".join(b"\x0d" + raw for raw in raws))


def integers_list(values: list[int], packed: bool) -> bytes:
    raws = [varint(value % (1 << 64)) for value in values]
    return counted(3, counted(1, b"".join(raws)) if packed else b"".join(b"\x08" + raw for raw in raws))


texts = st.lists(st.binary(max_size=200), max_size=3)
floats = st.lists(st.floats(width=32), max_size=4)
integers = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=40)
unknown = st.sampled_from([b"", b"\x50\x01", b"\x7a\x02ab", b"\x0d\x00\x00\x00\x00", b"\x08\x05", b"\x39" + bytes(8)])


@st.composite
def features(draw: st.DrawFn) -> tuple[bytes, Any]:
    """A Feature, as written, and its values."""
    kind = draw(st.sampled_from(["bytes", "floats", "integers"]))
    parts, values = [], list[Any]()
    for _ in range(draw(st.integers(1, 2))):
        if kind == "bytes":
            part: list[Any] = draw(texts)
            parts.append(bytes_list(part))
        elif kind == "floats":
            part = draw(floats)
            parts.append(floats_list(part, draw(st.booleans())))
        else:
            part = draw(integers)
            parts.append(integers_list(part, draw(st.booleans())))
        values += part
    before = draw(st.sampled_from([b"", integers_list([7], True), bytes_list([b"other"])]))
    replaced = before if before[:1] != parts[0][:1] else b""  # a list of another kind, which the next one replaces
    types = {"floats": np.float32, "integers": np.int64}
    return replaced + b"".join(parts), np.array(values, types[kind]) if kind in types else values


@st.composite
def any_examples(draw: st.DrawFn, in_entries: st.SearchStrategy[bytes] = unknown) -> tuple[bytes, dict[str, Any]]:
    raw, found = b"", dict[str, Any]()
    for _ in range(draw(st.integers(0, 2))):
        entries = b""
        for _ in range(draw(st.integers(0, 3))):
            name = draw(st.text(max_size=5))
            feature, values = draw(features())
            again = draw(st.sampled_from([b"", counted(2, b"")]))  # a feature in two parts, one of them empty
            order = draw(st.permutations([counted(1, name.encode()), counted(2, feature) + again, draw(in_entries)]))
            entries += draw(unknown) + counted(1, b"".join(order))
            found[name] = values
        raw += draw(unknown) + counted(1, entries)
    return raw, found


usual_examples = st.dictionaries(
    st.sampled_from(["image", "label", "x", "ü", ""]),
    st.one_of(
        st.binary(max_size=300).map(lambda raw: [raw]),
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
        st.lists(st.integers(0, 200), min_size=1, max_size=90),
        st.lists(st.floats(width=32), min_size=1, max_size=8),
    ),
    max_size=4,
)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Bit for bit, and in the same order."""
    return list(one) == list(other) and all(
        type(a) is type(b)
        and (a == b if isinstance(a, list) else a.dtype == b.dtype and a.tobytes() == b.tobytes() and a.flags.writeable)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def outcome(function: Any, raw: bytes) -> Any:
    try:
        return function(raw)
    except DataError as error:
        return error.message


# -- what is read ------------------------------------------------------------------------------------------------------


@given(any_examples())
def test_all_that_the_wire_format_allows_is_read(example: tuple[bytes, dict[str, Any]]) -> None:
    raw, expected = example
    assert same(decode_any(raw), expected)
    assert same(decode_example(raw), expected)


@given(st.lists(usual_examples, min_size=1, max_size=6))
def test_what_is_known_is_read_as_if_it_were_new(examples: list[dict[str, Any]]) -> None:
    known = Layouts()
    for features in (*examples, *reversed(examples)):
        raw = encode_example(features)
        assert same(known.decode(raw), decode_any(raw))


@given(
    st.lists(usual_examples, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3),
    st.integers(0, 400),
)
def test_hostile_bytes_after_known_ones(
    examples: list[dict[str, Any]], changes: list[tuple[int, int]], cut: int
) -> None:
    """Lengths that lie, names that are none, values that are cut off: the same, or the same error, as without what is
    known."""
    known, good = Layouts(), [encode_example(features) for features in examples]
    for raw in good:
        known.decode(raw)
    for whole in good:
        hostile = bytearray(whole)
        for at, value in changes:
            if hostile:
                hostile[at % len(hostile)] = value
        raw = bytes(hostile[: len(hostile) - cut if cut < len(hostile) else None])
        try:
            found: Any = known.decode(raw)
        except (UnusualError, IndexError, ValueError):
            found = None
        general = outcome(decode_any, raw)
        assert found is None or same(found, general)
        told = outcome(decode_example, raw)
        assert same(told, general) if isinstance(general, dict) else told == general


def test_known_heads_of_what_is_cut_off() -> None:
    """The Example's own length is right, but a feature is longer than what there is."""
    features = {"image": b"123456", "label": [1, 2, 300], "x": [0.5, 1.5], "words": [b"a", b"bc"]}
    inner = encode_example(features)[2:]
    known, fresh = Layouts(), Layouts()
    assert same(known.decode(counted(1, inner)), decode_any(counted(1, inner)))
    for cut in range(1, len(inner)):
        raw = counted(1, inner[:cut])
        general = outcome(decode_any, raw)
        for one in (known, fresh):
            try:
                assert same(one.decode(raw), general)
            except (UnusualError, IndexError, ValueError):
                assert isinstance(general, str)


@pytest.mark.parametrize("count", [1, 50])
def test_numbers_of_more_than_64_bits(count: int) -> None:
    for digits in (11, 12):
        with pytest.raises(ValueError, match="64 bits"):
            tf_example.integers(count * b"\xac\x02" + (digits - 1) * b"\x80" + b"\x01")
    assert tf_example.integers(count * b"\xac\x02" + 9 * b"\x80" + b"\x01").tolist() == [*(count * [300]), -(1 << 63)]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 1 << 20), max_size=80), st.binary(max_size=12))
def test_packed_numbers(values: list[int], more: bytes) -> None:
    raw = b"".join(varint(value % (1 << 64)) for value in values)
    assert tf_example.integers(raw).tolist() == values
    try:
        by_hand = tf_example._by_hand(raw + more).tolist()
    except (IndexError, ValueError):
        with pytest.raises((IndexError, ValueError)):
            tf_example._by_numpy(raw + more)
    else:
        assert not raw + more or tf_example._by_numpy(raw + more).tolist() == by_hand


def test_arrays_are_ones_own() -> None:
    raw = encode_example({"label": 3, "x": [0.5]})
    for name in ("label", "x"):
        decode_example(raw)[name][0] = 9
    assert decode_example(raw)["label"].tolist() == [3]
    assert decode_example(memoryview(raw))["x"].tolist() == [0.5]  # type: ignore[arg-type]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_number_in_the_place_of_a_text_is_no_text() -> None:
    """It is a field that nobody knows; certainly not so many zeros."""
    huge = varint(1 << 33)
    feature = counted(1, b"\x08" + huge + counted(1, b"text"))
    raw = counted(1, counted(1, b"\x08" + huge + counted(1, b"a") + b"\x10" + huge + counted(2, feature)))
    tracemalloc.start()
    try:
        assert decode_example(raw) == {"a": [b"text"]}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf_example, "HEADS", 16)
    known = Layouts()
    for size in range(100):
        known.decode(encode_example({"image": bytes(size), "n" * 300: 1}))
        assert len(known.heads) <= 16
    known.decode(encode_example({str(number): number for number in range(1000)}))
    assert len(known.widths) <= tf_example.FEATURES
    assert all(len(head) <= tf_example.WIDEST for head in known.heads)


# -- TensorFlow's own --------------------------------------------------------------------------------------------------


@given(any_examples(in_entries=st.just(b"")))  # an entry with a field that it does not know, it leaves out as a whole
def test_tensorflow_reads_the_same(example: tuple[bytes, dict[str, Any]]) -> None:
    tf = pytest.importorskip("tensorflow")
    raw, expected = example
    its = tf.train.Example.FromString(raw)
    assert set(expected) == set(its.features.feature)
    for name, feature in its.features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value)
        if kind == "float_list":
            assert np.array(values, np.float32).tobytes() == expected[name].tobytes()
        else:
            assert values == list(expected[name])
