"""Finds the caller of each host event, and the op that launched each device event.

The rules are those of torch's own `key_averages`, so that both give the same numbers: an event is the child of the
shortest event that contains it; an op that only calls another op of the same name is counted once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from paceline.tables.trace.kinds import uses_tensor_cores
from paceline.tables.trace.time_limit import paced

Integers = NDArray[np.int64]

# Torch's own bookkeeping, which `key_averages` leaves out too.
LEFT_OUT = (
    "[memory]",
    "[OutOfMemory]",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)


def parents(rows: pl.DataFrame) -> Integers:
    """For each row the row that contains it, -1 if none does. Rows are sorted by process, thread, start and latest end
    first. If two rows overlap and neither contains the other, neither is the other's parent."""
    thread = _threads(rows)
    found = np.full(rows.height, -1, dtype=np.int64)
    stack: list[int] = []
    ends = rows["end"].to_list()
    before = -1
    told = zip(thread.tolist(), rows["start"].to_list(), ends, strict=True)
    for row, (here, start, end) in enumerate(paced(told)):
        if here != before:
            stack.clear()
            before = here
        while stack and (start >= ends[stack[-1]] or end > ends[stack[-1]]):
            stack.pop()
        if stack:
            found[row] = stack[-1]
        stack.append(row)
    return found


def in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows in the order that `parents` needs."""
    return rows.sort(["process", "thread", "start", "end"], descending=[False, False, False, True], maintain_order=True)


def calls(host: pl.DataFrame, device: pl.DataFrame) -> pl.DataFrame:
    """Every call on the host, with its own time and the device time of its kernels.

    Adds to the rows of `host`: parent (a row's index, or -1), host_self (nanoseconds), and for the device kernels,
    device_self, device_total, tensor_self (the part of device_self on tensor cores).
    """
    rows = in_order(host.filter(~pl.col("name").cast(pl.String).is_in(LEFT_OUT)))
    parent = parents(rows)
    # An op that only calls another op of its name is the same call: drop the inner one.
    children = np.bincount(parent[parent >= 0], minlength=rows.height)
    name = rows["name"].to_physical().to_numpy()
    doubled = (parent >= 0) & (children[parent] == 1) & (name == name[parent])
    owner = np.where(doubled, parent, np.arange(rows.height))
    while (doubled[owner]).any():
        owner = owner[owner]
    kernels, own, tensor = _device_time(rows, device, owner)
    kept = ~doubled
    number = np.cumsum(kept) - 1
    above = np.where(parent >= 0, number[owner[parent]], -1)[kept]
    rows = rows.filter(pl.Series(kept))
    length = (rows["end"] - rows["start"]).to_numpy()
    own_total = _sums_below(above, own[kept])
    inside = np.bincount(above[above >= 0], weights=length[above >= 0], minlength=rows.height)
    return rows.with_columns(
        pl.Series("parent", above),
        pl.Series("host_self", length - inside.astype(np.int64)),
        pl.Series("kernels", kernels[kept]),
        pl.Series("device_self", own[kept]),
        pl.Series("device_total", own_total),
        pl.Series("tensor_self", tensor[kept]),
    )


def owners(rows: pl.DataFrame, device: pl.DataFrame) -> Integers:
    """For each event of `device` the row of `rows` that launched it: by torch's external id, else by correlation id."""
    ops = np.flatnonzero(rows["kind"].is_in(["op", "mark"]).to_numpy())
    by_op = _look_up(rows["external"].to_numpy()[ops], ops, device["external"].to_numpy())
    launches = np.flatnonzero((rows["kind"] == "runtime").to_numpy())
    by_launch = _look_up(rows["correlation"].to_numpy()[launches], launches, device["correlation"].to_numpy())
    return np.where(by_op >= 0, by_op, by_launch)


def _device_time(rows: pl.DataFrame, device: pl.DataFrame, owner: Integers) -> tuple[Integers, Integers, Integers]:
    """For each row: the number of kernels it launched itself, their time, and the part of it on tensor cores."""
    found = owners(rows, device)
    known = found >= 0
    found = owner[found[known]]
    length = (device["end"] - device["start"]).to_numpy()[known]
    tensor = uses_tensor_cores(device["name"]).to_numpy()[known]

    def summed(weights: Any = None) -> Integers:
        return np.bincount(found, weights=weights, minlength=rows.height).astype(np.int64)

    return summed(), summed(length), summed(np.where(tensor, length, 0))


def _look_up(keys: Integers, values: Integers, asked: Integers) -> Integers:
    """The value of each requested key; -1 if the key is unknown or not positive."""
    real = keys > 0
    keys, values = keys[real], values[real]
    if not len(keys):
        return np.full(len(asked), -1, dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where((keys[at] == asked) & (asked > 0), values[at], -1)


def _sums_below(parent: Integers, own: Integers) -> Integers:
    """The sum of each row's own number and those of all its descendants. Parents come before children."""
    total = own.tolist()
    above = parent.tolist()
    for row in paced(range(len(above) - 1, -1, -1)):
        if above[row] >= 0:
            total[above[row]] += total[row]
    return np.array(total, dtype=np.int64)


def _threads(rows: pl.DataFrame) -> Integers:
    """A number for each pair of process and thread, in the rows' order."""
    changed = (rows["process"].diff().fill_null(0) != 0) | (rows["thread"].diff().fill_null(0) != 0)
    return changed.cast(pl.Int64).cum_sum().to_numpy()
