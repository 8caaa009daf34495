"""Time by type of op: ops of the same kind in one row."""

from __future__ import annotations

import polars as pl

from paceline.tables.ops import ops
from paceline.tables.trace.columns import Trace

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
