"""Without a launcher there is one rank, as in Horovod: scripts run as they are."""

from __future__ import annotations

import pytest
from hvd_worlds import fresh

import paceline.horovod.torch as hvd
from paceline.horovod.runner.util.threads import in_thread

SCRIPT = """
import torch
import paceline.horovod.torch as hvd
from paceline.horovod.runner.util.threads import in_thread

hvd.init()
assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
assert hvd.gloo_built() and hvd.gloo_enabled() and not hvd.mpi_built() and not hvd.mpi_enabled()
assert not (hvd.ddl_built() or hvd.ccl_built() or hvd.rocm_built())
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters()), model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
assert hvd.allgather_object("a") == ["a"] and hvd.broadcast_object("b") == "b"
assert hvd.alltoall(torch.arange(3)).tolist() == [0, 1, 2] and hvd.join() == 0
hvd.barrier()
assert hvd.SyncBatchNorm(3)(torch.randn(4, 3)).shape == (4, 3)
"""


def play(rank: int, size: int) -> None:
    hvd.shutdown()
    exec(compile(SCRIPT, "script.py", "exec"), {"__name__": "__main__"})


def test_a_script_alone() -> None:
    with fresh(1) as ranks:
        ranks.run(play)


def test_nothing_works_before_init() -> None:
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.size()
    hvd.shutdown()


def test_a_thread_is_started() -> None:
    done: list[int] = []
    in_thread(done.append, (1,)).join()
    assert done == [1]
    with pytest.raises(ValueError, match="args must be a tuple"):
        in_thread(done.append, 1)  # type: ignore[arg-type]
