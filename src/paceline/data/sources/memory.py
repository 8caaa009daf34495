"""Indexed sources in memory: arrays, lists and map-style datasets. Arrays return a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from paceline.data.planning.order import Indices
from paceline.errors import UsageError
from paceline.script import tree


class Source(Protocol):
    """Samples by index. `gather` makes a whole batch at once; None if the source cannot."""

    gather: Callable[[Indices], Any] | None

    def __len__(self) -> int: ...

    def fetch(self, index: int) -> Any: ...

    def name(self, index: int) -> str:
        """The name of a sample in error messages."""
        ...


class Arrays:
    """Tensors whose rows are samples, in nested tuples, lists and dictionaries. Only the rows of a batch are copied."""

    def __init__(self, nest: Any) -> None:
        self.nest = tree.replace(nest, _as_tensor)
        self.columns: list[torch.Tensor] = tree.leaves(self.nest)
        lengths = {len(column) for column in self.columns}
        if len(lengths) != 1:
            raise UsageError(
                f"data.arrays() got arrays that differ in length: {', '.join(map(str, sorted(lengths))) or 'none'}.",
                advice="Give arrays with the same size in the first dimension.",
            )
        self.length = lengths.pop()
        self._pair = type(self.nest) is tuple and all(isinstance(item, torch.Tensor) for item in self.nest)
        self.gather: Callable[[Indices], Any] | None = self._gather

    def __len__(self) -> int:
        return self.length

    def fetch(self, index: int) -> Any:
        return tree.replace(self.nest, lambda column: column[index])

    def _gather(self, indices: Indices) -> Any:
        chosen = torch.from_numpy(indices)
        if self._pair:  # the usual case, without a walk through the structure
            return tuple([column.index_select(0, chosen) for column in self.columns])
        return tree.replace(self.nest, lambda column: column.index_select(0, chosen))

    def name(self, index: int) -> str:
        return f"sample {index}"


def _as_tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc" or not array.ndim:
        raise UsageError(
            f"data.arrays() got an array of {array.dtype} with {array.ndim} dimensions.",
            advice="Give arrays of numbers with one sample in each row. For other samples: data.items([...]).",
        )
    if not array.flags.writeable:  # a memory-mapped file: only read from
        array = array.view()
        with np.errstate(all="ignore"):
            return _read_only(array)
    return torch.from_numpy(array)


def _read_only(array: np.ndarray[Any, Any]) -> torch.Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not support read-only memory
        return torch.from_numpy(array)


class Items:
    """A list, a map-style dataset, or any other object with a length and indices."""

    gather: Callable[[Indices], Any] | None = None

    def __init__(self, items: Sequence[Any], name: Callable[[int], str] | None = None) -> None:
        self.items = items
        self._name = name

    def __len__(self) -> int:
        return len(self.items)

    def fetch(self, index: int) -> Any:
        return self.items[index]

    def name(self, index: int) -> str:
        return self._name(index) if self._name is not None else f"sample {index}"


def of_dataset(dataset: Any) -> Source:
    """The source of a map-style torch dataset; of a TensorDataset, its tensors are used directly."""
    if type(dataset) is TensorDataset:
        return Arrays(tuple(dataset.tensors))
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        part = torch.as_tensor(list(dataset.indices), dtype=torch.int64)
        return Arrays(tuple(tensor.index_select(0, part) for tensor in dataset.dataset.tensors))
    return Items(dataset)
