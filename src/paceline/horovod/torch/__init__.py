"""The surface of `horovod.torch`. See Horovod's documentation for how it is used.

import horovod.torch as hvd      # `paceline run` resolves the name `horovod` to Paceline's own

hvd.init()
hvd.allreduce(tensor, name="loss")
"""

from __future__ import annotations

from paceline.horovod.torch import mpi_ops
from paceline.horovod.torch.mpi_ops import *  # noqa: F403
from paceline.horovod.torch.mpi_ops import __all__ as _of_mpi_ops

__all__ = [*_of_mpi_ops, "mpi_ops"]
