"""Nests of batches and outputs: taking the leaves out and putting them back changes nothing."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.script import tree


class Point(NamedTuple):
    x: Any
    y: Any = None


Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: Any
    loss: Any = None
    rest: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    value: Any


@dataclass(slots=True)
class Slotted:
    value: Any


class ModelOutput(OrderedDict):
    """As libraries of models make them: a dictionary whose keys are attributes, too."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Batch(UserDict):
    """As tokenizers give back: looks like a dictionary, and is none."""


class Rows(list):
    pass


plain_leaves = st.one_of(st.integers(), st.text(max_size=3), st.none(), st.booleans(), st.floats(allow_nan=False))


def nests_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items, keys = st.lists(inner, max_size=3), st.text(max_size=3)
    return st.one_of(
        items,
        items.map(tuple),
        items.map(Rows),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(Batch),
        st.dictionaries(st.sampled_from(["logits", "loss"]), inner).map(ModelOutput),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Output, inner, inner, items),
        st.builds(Frozen, inner),
        st.builds(Slotted, inner),
    )


nests = st.recursive(plain_leaves, nests_of, max_leaves=12)


def same(a: Any, b: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Output | Frozen | Slotted):
        return all(same(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    return a == b


@given(nests)
def test_putting_the_leaves_back_changes_nothing(nest: Any) -> None:
    assert same(tree.rebuild(nest, iter(tree.leaves(nest))), nest)


@given(nests)
def test_a_rebuilt_nest_is_a_new_one(nest: Any) -> None:
    before = tree.leaves(nest)
    tree.rebuild(nest, iter(range(len(before))))
    assert tree.leaves(nest) == before


@given(nests)
def test_other_leaves_come_out_in_the_order_in_which_they_were_put_in(nest: Any) -> None:
    count = len(tree.leaves(nest))
    assert tree.leaves(tree.rebuild(nest, iter(range(count)))) == list(range(count))


@given(nests)
def test_nests_that_differ_in_their_leaves_only_are_alike(nest: Any) -> None:
    other = tree.replace(nest, lambda leaf: object())
    assert tree.structure(other) == tree.structure(nest)
    hash(tree.structure(nest))


@given(nests)
def test_every_leaf_has_a_name(nest: Any) -> None:
    assert len(tree.paths(nest)) == len(tree.leaves(nest))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        (Point(1, 2), (1, 2)),
        (Point(1, 2), Pair(1, 2)),
        (Output(1), Frozen(1)),
        ([1, [2]], [[1], 2]),
        (1, [1]),
    ],
    ids=str,
)
def test_different_nests_are_not_alike(one: Any, other: Any) -> None:
    assert tree.structure(one) != tree.structure(other)


def test_names_are_what_a_person_would_write() -> None:
    nest = (1, {"mask": [2, 3]}, Output(logits=4, loss=None), Point(5, 6))
    assert tree.paths(nest, "output") == [
        "output[0]",
        "output[1]['mask'][0]",
        "output[1]['mask'][1]",
        "output[2].logits",
        "output[2].loss",
        "output[3][0]",
        "output[3][1]",
    ]


def test_tensors_are_leaves_and_are_not_copied() -> None:
    tensor = torch.ones(2, 3)
    assert tree.leaves({"x": (tensor,)})[0] is tensor
    assert tree.rebuild([tensor], iter([tensor]))[0] is tensor


@pytest.mark.parametrize(
    "leaf", [torch.Size([2, 3]), SimpleNamespace(a=1), "text", b"bytes", {1, 2}, range(3)], ids=str
)
def test_a_single_thing_survives(leaf: Any) -> None:
    found = tree.rebuild(leaf, iter(tree.leaves(leaf)))
    assert type(found) is type(leaf)
    assert found == leaf


def test_a_dictionary_that_makes_missing_entries_still_does() -> None:
    nest: defaultdict[str, list[int]] = defaultdict(list, a=[1])
    found = tree.rebuild(nest, iter([2]))
    assert found == {"a": [2]}
    assert found["new"] == []


def test_attributes_of_a_model_output_follow_its_entries() -> None:
    found = tree.rebuild(ModelOutput(logits=1, loss=2), iter([3, 4]))
    assert (found["logits"], found.logits, found.loss) == (3, 3, 4)


def test_a_mapping_that_cannot_be_written_is_rebuilt() -> None:
    found = tree.rebuild(MappingProxyType({"a": 1}), iter([2]))
    assert dict(found) == {"a": 2}


def test_fields_of_a_dataclass_that_are_not_in_its_constructor_are_kept() -> None:
    @dataclass
    class Late:
        value: Any
        made: Any = field(init=False)

        def __post_init__(self) -> None:
            self.made = [self.value]

    found = tree.rebuild(Late(1), iter([2, 3]))
    assert (found.value, found.made) == (2, [3])


def test_torch_return_types_are_rebuilt() -> None:
    """What `x.max(dim=1)` gives: a tuple of a type of torch's own, made from one sequence."""
    found = torch.ones(2, 3).max(dim=1)
    again = tree.rebuild(found, iter(tree.leaves(found)))
    assert type(again) is type(found)
    assert again.values is found.values
    assert again.indices is found.indices


class Layer:
    """Refers to the object that holds it, as layers of a cache may."""

    def __init__(self, keys: torch.Tensor, cache: Any) -> None:
        self.keys, self.size, self.cache = keys, len(keys), cache


class Cache:
    def __init__(self) -> None:
        self.layers = [Layer(torch.zeros(2), self), Layer(torch.ones(3), self)]


def test_tensors_are_found_in_attributes_of_objects_also_in_those_that_refer_to_each_other() -> None:
    cache = Cache()
    found = [leaf for leaf in tree.leaves(cache) if isinstance(leaf, torch.Tensor)]
    assert [len(leaf) for leaf in found] == [2, 3]
    assert tree.paths(cache)[:2] == [".layers[0].keys", ".layers[0].size"]
    moved = tree.replace(cache, lambda leaf: leaf + 1 if isinstance(leaf, torch.Tensor) else leaf)
    assert moved is not cache
    assert moved.layers[1].keys.tolist() == [2, 2, 2]
    assert cache.layers[1].keys.tolist() == [1, 1, 1]
    assert tree.structure(cache) == tree.structure(moved)
    assert tree.first_tensor(cache) is cache.layers[0].keys


class Sized(dict[str, Any]):
    """Like a TensorDict: checks that what it holds begins with its batch size."""

    def __init__(self, batch_size: tuple[int, ...]) -> None:
        super().__init__()
        self._size = torch.Size(batch_size)

    @property
    def batch_size(self) -> torch.Size:
        return self._size

    @batch_size.setter
    def batch_size(self, size: torch.Size) -> None:
        assert all(value.shape[: len(size)] == size for value in self.values())
        self._size = size

    def empty(self) -> Sized:
        return Sized(self._size)

    def __setitem__(self, key: str, value: Any) -> None:
        assert value.shape[: len(self._size)] == self._size
        super().__setitem__(key, value)


def test_a_container_with_a_batch_size_of_its_own_is_cut() -> None:
    whole = Sized((6, 2))
    whole["a"], whole["b"] = torch.arange(12).view(6, 2), torch.ones(6, 2, 3)
    rows = tree.replace(whole, lambda leaf: leaf[1:4])
    assert isinstance(rows, Sized)
    assert rows.batch_size == (3, 2)
    assert rows["a"].tolist() == [[2, 3], [4, 5], [6, 7]]
    assert rows["b"].shape == (3, 2, 3)
    assert whole.batch_size == (6, 2)
