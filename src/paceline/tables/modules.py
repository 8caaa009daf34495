"""Time by module. Needs a trace with Python's stack (`--stack`), in which torch names the modules."""

from __future__ import annotations

import numpy as np
import polars as pl

from paceline.errors import TraceError
from paceline.tables.trace.columns import Trace
from paceline.tables.trace.intervals import Integers
from paceline.tables.trace.nesting import in_order, parents
from paceline.tables.trace.time_limit import paced

MODULE = "nn.Module: "
LONGEST = 16 << 20  # characters of all module paths together


def modules(trace: Trace) -> pl.DataFrame:
    """One row per module, most time first: rank, module (its path, as `ResNet_0/Sequential_1/Conv2d_3`), calls, and the
    time of its own ops without its submodules, in forward and backward, on the host and the device (host_forward,
    host_backward, device_forward, device_backward; seconds). A backward op belongs to the module of its forward op.
    Empty if the trace has no stack."""
    calls = trace.calls.with_row_index("row")
    frames = trace.counted.filter(
        (pl.col("kind") == "python") & pl.col("name").cast(pl.String).str.starts_with(MODULE)
    ).with_columns(row=pl.lit(None, dtype=pl.UInt32))
    shared = ["kind", "name", "start", "end", "process", "thread", "sequence", "row"]
    rows = in_order(pl.concat([frames.select(shared), calls.select(shared)]))
    above = parents(rows)
    name = rows["name"].cast(pl.String)
    is_module = (rows["kind"] == "python").to_numpy()
    backward = _backward(name, above)
    paths = _paths(name.to_list(), above, is_module)
    paths = _of_forward(paths, rows["sequence"].to_numpy(), above, backward)
    table = rows.with_columns(pl.Series("module", paths), pl.Series("backward", backward)).filter(
        pl.col("module") != ""
    )
    counted = table.filter(pl.col("kind") == "python").group_by("module").agg(calls=pl.len().cast(pl.Int64))
    times = calls.select("row", "host_self", "device_self")
    own = (
        table.filter(pl.col("row").is_not_null())
        .join(times, on="row", how="left")
        .group_by("module")
        .agg(
            host_forward=pl.col("host_self").filter(~pl.col("backward")).sum() / 1e9,
            host_backward=pl.col("host_self").filter("backward").sum() / 1e9,
            device_forward=pl.col("device_self").filter(~pl.col("backward")).sum() / 1e9,
            device_backward=pl.col("device_self").filter("backward").sum() / 1e9,
        )
    )
    figures = ["host_forward", "host_backward", "device_forward", "device_backward"]
    return (
        counted.join(own, on="module", how="left")
        .with_columns(pl.col(figures).fill_null(0.0))
        .sort(
            pl.col("device_forward") + pl.col("device_backward"),
            pl.col("host_forward") + pl.col("host_backward"),
            "module",
            descending=[True, True, False],
        )
        .select(pl.lit(trace.rank, dtype=pl.Int64).alias("rank"), "module", "calls", *figures)
    )


def _paths(names: list[str], above: Integers, is_module: np.ndarray) -> list[str]:
    """The module path of each row."""
    paths: list[str] = []
    known: dict[tuple[str, str], str] = {}  # each path is stored once
    length = 0
    for row, (name, parent) in enumerate(paced(zip(names, above.tolist(), strict=True))):
        outer = paths[parent] if parent >= 0 else ""
        if is_module[row]:
            path = known.get((outer, name))
            if path is None:
                path = f"{outer}/{name.removeprefix(MODULE)}" if outer else name.removeprefix(MODULE)
                known[outer, name] = path
                length += len(path)
                if length > LONGEST:
                    # Each path contains all paths above it: a million nested modules would exhaust memory.
                    raise TraceError(
                        "The trace's modules are nested too deeply: their paths have more than "
                        f"{LONGEST >> 20} Mi characters.",
                        advice="Trace without Python's stack: paceline profile without --stack",
                    )
            outer = path
        paths.append(outer)
    return paths


def _backward(names: pl.Series, above: Integers) -> Integers:
    """Whether each row belongs to a backward pass."""
    found = names.str.starts_with("autograd::engine::evaluate_function").to_numpy().copy()
    for row, parent in enumerate(paced(above.tolist())):
        if parent >= 0 and found[parent]:
            found[row] = True
    return found


def _of_forward(paths: list[str], sequence: Integers, above: Integers, backward: Integers) -> list[str]:
    """Gives a backward op, and the calls inside it, the module of the forward op with the same sequence number."""
    made: dict[int, str] = {}
    for row, number in enumerate(paced(sequence.tolist())):
        if number >= 0 and not backward[row] and paths[row]:
            made[number] = paths[row]  # the last op with a number is the one that made the autograd node
    found = list(paths)
    for row, parent in enumerate(paced(above.tolist())):
        if backward[row]:
            inherited = found[parent] if parent >= 0 and backward[parent] else ""
            found[row] = made.get(int(sequence[row]), "") or inherited
    return found
