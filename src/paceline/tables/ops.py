"""Time by op, on the host and on the device."""

from __future__ import annotations

from typing import Literal

import polars as pl

from paceline.tables.trace.columns import Trace
from paceline.tables.trace.kinds import could_use_tensor_cores

By = Literal["name", "shapes"]


def ops(trace: Trace, *, by: By = "name") -> pl.DataFrame:
    """One row per op, most device time first, then most host time. The numbers are those of torch's `key_averages`.

    rank, kind (op; mark: a `record_function`; runtime: a call of the device's driver), name, with `by="shapes"` also
    shapes and types; calls; host_self, host_total; kernels, device_self, device_total: device work for the op itself,
    and also for the ops it called; eligible (could use tensor cores), tensor_cores (share of device_self that ran on
    them; null without device work). Times are seconds, summed over all calls; totals count nested calls of the same op
    twice.
    """
    keys = ["kind", "name"] if by == "name" else ["kind", "name", "shapes", "types"]
    table = (
        trace.calls.lazy()
        .with_columns(pl.col("name").cast(pl.String).str.replace(r"^ProfilerStep#.*$", "ProfilerStep*"))
        .group_by(keys)
        .agg(
            calls=pl.len().cast(pl.Int64),
            host_self=pl.col("host_self").sum(),
            host_total=(pl.col("end") - pl.col("start")).sum(),
            kernels=pl.col("kernels").sum(),
            device_self=pl.col("device_self").sum(),
            device_total=pl.col("device_total").sum(),
            tensor_self=pl.col("tensor_self").sum(),
        )
        .collect()
    )
    return (
        table.with_columns(
            could_use_tensor_cores(table["name"]).alias("eligible"),
            pl.when(pl.col("device_self") > 0)
            .then(pl.col("tensor_self") / pl.col("device_self"))
            .alias("tensor_cores"),
            pl.lit(trace.rank, dtype=pl.Int64).alias("rank"),
            # Each trace has its own name categories: plain text lets tables of several ranks be concatenated.
            pl.col([name for name in keys if name != "name"]).cast(pl.String),
        )
        .sort(["device_self", "host_self", "name"], descending=[True, True, False])
        .with_columns(pl.col("host_self", "host_total", "device_self", "device_total") / 1e9)
        .select(
            *("rank", *keys, "calls", "host_self", "host_total", "kernels", "device_self", "device_total"),
            *("eligible", "tensor_cores"),
        )
    )


# -- types of ops -----------------------------------------------------------------------------------------------------


# The first pattern that matches counts. Names are those of torch's operators, with their backward.
TYPES = {
    "communication": r"^(nccl|gloo|c10d|mpi|ucc)|record_param_comms|all_reduce|allreduce|_allgather|reduce_scatter",
    "attention": r"attention",
    "convolution": r"[Cc]onv",
    "matrix product": r"::_?(addmm|mm|bmm|baddbmm|addbmm|matmul|linear|einsum|_scaled_mm|mv|addmv|dot)|"
    r"(Addmm|Mm|Bmm|Baddbmm|Linear|Mv|Dot)Backward",
    "normalisation": r"norm|Norm",
    "loss": r"loss|Loss|nll",
    "optimizer": r"^Optimizer\.|_fused_(adam|sgd|adagrad)|_foreach_",
    "embedding": r"embedding|Embedding",
    "recurrent": r"rnn|lstm|gru",
    "pooling": r"pool|Pool",
    "activation": r"relu|Relu|gelu|Gelu|silu|Silu|sigmoid|Sigmoid|tanh|Tanh|softmax|Softmax|dropout|Dropout",
    "copy": r"::(_to_copy|to|copy_|clone|contiguous|cat|stack|pin_memory|item|_local_scalar_dense)$|CopyBackward",
    "reduction": r"::(sum|mean|max|min|argmax|argmin|amax|amin|any|all|cumsum|topk|sort)(_|$)|(Sum|Mean|Max)Backward",
    "random": r"rand|normal_|uniform_|bernoulli",
    "memory": r"::(empty|zeros|ones|full|fill_|zero_|resize_|set_|new_)",
    "view": r"::(view|reshape|transpose|t|permute|as_strided|slice|select|expand|squeeze|unsqueeze|detach|flatten|"
    r"unbind|split|chunk|narrow|alias|_unsafe_view|_reshape_alias)_?$|(View|Reshape|T|Transpose|Permute)Backward",
    "indexing": r"index|gather|scatter|nonzero|where",
    "arithmetic": r"::(add|sub|mul|div|addcmul|addcdiv|lerp|sqrt|rsqrt|pow|exp|log|neg|abs|clamp|eq|ne|gt|lt|ge|le)",
}


def op_types(trace: Trace) -> pl.DataFrame:
    """One row per type, most time first: rank, type, ops (number of different ones), calls, host_self, device_self
    (seconds), share (of all ops' time: device time if there is any, else host time)."""
    table = ops(trace).filter(pl.col("kind") == "op")
    kind = pl.lit("other")
    for name, pattern in reversed(TYPES.items()):
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(name)).otherwise(kind)
    time = "device_self" if table["device_self"].sum() > 0 else "host_self"
    return (
        table.with_columns(kind.alias("type"))
        .group_by("rank", "type")
        .agg(
            ops=pl.len().cast(pl.Int64),
            calls=pl.col("calls").sum(),
            host_self=pl.col("host_self").sum(),
            device_self=pl.col("device_self").sum(),
        )
        .with_columns((pl.col(time) / pl.col(time).sum()).fill_nan(0.0).alias("share"))
        .sort([time, "type"], descending=[True, False])
    )
