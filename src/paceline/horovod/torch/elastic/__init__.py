"""The surface of `horovod.torch.elastic`: training that goes on with the workers that are left.

@hvd.elastic.run
def train(state):
    while state.epoch < 10:
        …
        state.epoch += 1
        state.commit()

train(hvd.elastic.TorchState(model, optimizer, epoch=0))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.horovod.common.elastic import run_fn
from paceline.horovod.torch.elastic.sampler import ElasticSampler
from paceline.horovod.torch.elastic.state import TorchState
from paceline.horovod.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Makes `func(state, …)` go on when workers are lost; see `common/elastic.py`. The function must not be called from
    within a collective operation."""
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    init()
