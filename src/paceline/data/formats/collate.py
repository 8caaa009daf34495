"""Collates samples into a batch: each sample is written directly into its row, so that a batch is in memory only once.

A batch has the structure of its samples: tuples, lists, named tuples and dictionaries. Numbers, arrays and tensors
become tensors, as in torch's collate function; strings and all other values become lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from paceline.errors import DataError
from paceline.script import tree

Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def collate(samples: list[Any]) -> Any:
    """A batch of these samples, at least one."""
    tray = Tray(len(samples))
    for sample in samples:
        tray.put(sample)
    return tray.batch()


class Tray:
    """A batch that is being filled, of `size` rows at most."""

    def __init__(self, size: int, allocate: Allocate = empty) -> None:
        self.size, self.count = size, 0
        self._allocate, self._nest = allocate, None
        self._flat = False  # samples are plain tuples without nesting: the fast path
        self._columns: list[_Rows | _Numbers | _Things] = []

    def put(self, sample: Any) -> None:
        """The next row."""
        if self._flat and type(sample) is tuple:
            leaves: Any = sample
        elif isinstance(sample, (tuple, list, Mapping)) or is_record(sample):
            leaves = tree.leaves(sample)
        else:
            leaves = [sample]
        if not self.count:
            self._nest = sample
            self._flat = type(sample) is tuple and not any(map(_is_nest, sample))
            self._columns = [_column(leaf, self.size, self._allocate) for leaf in leaves]
        elif len(leaves) != len(self._columns):
            raise DataError(
                f"The samples of a batch differ: one has {len(self._columns)} values, another {len(leaves)}.",
                advice="Give all samples the same structure in a map, or leave .batch() out.",
            )
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.put(self.count, leaf)
        self.count += 1

    def batch(self) -> Any:
        columns = iter([column.made(self.count) for column in self._columns])
        return tree.rebuild(self._nest, columns)


def _is_nest(value: Any) -> bool:
    return isinstance(value, (tuple, list, Mapping)) or is_record(value)


def is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _column(leaf: Any, size: int, allocate: Allocate) -> _Rows | _Numbers | _Things:
    if isinstance(leaf, torch.Tensor):
        return _Rows(allocate((size, *leaf.shape), leaf.dtype), leaf.device)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return _Rows(allocate((size, *leaf.shape), _torch_type(leaf)), torch.device("cpu"))
    if isinstance(leaf, (bool, int, float, complex, np.number, np.bool_)):
        return _Numbers()
    return _Things()


def _torch_type(array: np.ndarray[Any, Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype.newbyteorder("="))).dtype


class _Rows:
    """A tensor's rows."""

    def __init__(self, rows: torch.Tensor, device: torch.device) -> None:
        self.rows, self.device = rows, device
        # numpy writes a row in a fraction of torch's time, but has no bfloat16.
        self.array = rows.numpy() if rows.dtype not in (torch.bfloat16,) and device.type == "cpu" else None
        if device.type != "cpu":
            self.rows = torch.empty(rows.shape, dtype=rows.dtype, device=device)

    def put(self, number: int, leaf: Any) -> None:
        shape = getattr(leaf, "shape", None)
        if shape != self.rows.shape[1:] and tuple(shape or ()) != tuple(self.rows.shape[1:]):
            raise DataError(
                f"The samples of a batch differ in shape: {list(self.rows.shape[1:])} and {list(shape or ())}.",
                advice="Give all samples the same shape in a map (crop, pad), or leave .batch() out.",
            )
        if isinstance(leaf, torch.Tensor):
            if self.array is not None and leaf.device.type == "cpu" and not leaf.requires_grad:
                self.array[number] = leaf.numpy()
            else:
                self.rows[number].copy_(leaf.detach())
        elif self.array is not None:
            self.array[number] = leaf

    def made(self, count: int) -> torch.Tensor:
        return self.rows if count == len(self.rows) else self.rows[:count]


class _Numbers:
    def __init__(self) -> None:
        self.numbers: list[Any] = []

    def put(self, number: int, leaf: Any) -> None:
        self.numbers.append(leaf)

    def made(self, count: int) -> torch.Tensor:
        first = self.numbers[0]
        if isinstance(first, (np.number, np.bool_)):
            return torch.from_numpy(np.array(self.numbers))
        return torch.tensor(self.numbers, dtype=torch.float64 if isinstance(first, float) else None)


class _Things:
    def __init__(self) -> None:
        self.things: list[Any] = []

    def put(self, number: int, leaf: Any) -> None:
        self.things.append(leaf)

    def made(self, count: int) -> list[Any]:
        return self.things
