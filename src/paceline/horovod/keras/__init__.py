"""The surface of `horovod.keras`, for Keras 3 on its torch backend.

import horovod.keras as hvd      # `paceline run` resolves the name `horovod` to Paceline's own

hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
model.compile(optimizer=optimizer, loss=…)
model.fit(…, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.horovod import torch as hvd
from paceline.horovod.common import basics
from paceline.horovod.common.basics import *  # noqa: F403
from paceline.horovod.keras import callbacks
from paceline.horovod.keras.backend import broadcast_global_variables, broadcast_variables, keras, tensor_of
from paceline.horovod.keras.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    distribute_in_place,
)
from paceline.horovod.torch.mpi_ops import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    global_process_set,
    init,
    remove_process_set,
    shutdown,
)

__all__ = [
    *basics.__all__,
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "global_process_set",
    "init",
    "load_model",
    "reducescatter",
    "remove_process_set",
    "shutdown",
]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a number, an array or a tensor over the ranks: a tensor. The average, if `op` is not given."""
    return hvd.allreduce(
        tensor_of(value),
        average=average,
        name=name,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the values of all ranks along the first dimension, whose size may differ between ranks."""
    return hvd.allgather(tensor_of(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The value of rank `root_rank`, as a tensor."""
    return hvd.broadcast(tensor_of(value), root_rank, name=name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Reduces a value over the ranks, and gives each rank its part of the first dimension."""
    return hvd.reducescatter(tensor_of(value), name=name, op=op)


def load_model(
    filepath: str | Path,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Loads a model that was saved with or without Horovod, with its optimizer's state; the optimizer is then a
    DistributedOptimizer. `custom_optimizers` and `custom_objects` are classes that Keras does not know."""
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        distribute_in_place(model.optimizer, compression=compression)
    return model
