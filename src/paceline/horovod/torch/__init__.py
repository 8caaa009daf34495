"""The surface of `horovod.torch`. See Horovod's documentation for how it is used.

import horovod.torch as hvd      # `paceline run` resolves the name `horovod` to Paceline's own

hvd.init()
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
"""

from __future__ import annotations

from paceline.horovod.common.basics import *  # noqa: F403
from paceline.horovod.torch import elastic, mpi_ops
from paceline.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from paceline.horovod.torch.mpi_ops import *  # noqa: F403
from paceline.horovod.torch.mpi_ops import __all__ as _of_mpi_ops
from paceline.horovod.torch.optimizer import DistributedOptimizer
from paceline.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *_of_mpi_ops,
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "mpi_ops",
]
