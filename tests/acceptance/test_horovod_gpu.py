"""A Horovod script on two workers that share a GPU: through host memory, and over NCCL, which then uses sockets."""

from __future__ import annotations

from pathlib import Path

import pytest
from typist import Typist

pytestmark = [pytest.mark.slow, pytest.mark.gpu]
# NCCL refuses two ranks on one GPU of one host: let it believe that there are two hosts.
OVER_NCCL = """
import os
from paceline.settings import of_this_process
os.environ["NCCL_HOSTID"] = str(of_this_process().rank)
from paceline.wire.link import within
from paceline.horovod.engine import exchange
exchange.ProcessSets._make_gpu_exchange = lambda self, number, host: exchange.over_nccl(
    within(self._store, f"set{number}"), host.rank, self.ranks[number]
)
"""
SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
              torch.float32, torch.float64):
    each = torch.arange(6, device="cuda").to(dtype) + rank
    assert hvd.allreduce(each, op=hvd.Sum, name=f"sum {dtype}").tolist() == [2 * n + 1 for n in range(6)], dtype
    assert hvd.allreduce(each, op=hvd.Max, name=f"max {dtype}").tolist() == [n + 1 for n in range(6)], dtype
    assert hvd.allgather(each[: rank + 1]).tolist() == [0, 1, 2], dtype
    assert hvd.broadcast(each, root_rank=1).tolist() == [n + 1 for n in range(6)], dtype
    received, splits = hvd.alltoall(each[:3], splits=torch.tensor([1, 2], dtype=torch.int32))
    assert received.tolist() == ([0, 1] if rank == 0 else [1, 2, 2, 3]), (dtype, received)
truth = torch.tensor([rank == 0, True, False], device="cuda")
assert hvd.allgather(truth).tolist() == [True, True, False, False, True, False]
assert hvd.broadcast(truth, root_rank=0).tolist() == [True, True, False]
assert hvd.reducescatter(torch.ones(5, 2, device="cuda"), op=hvd.Sum).sum() == (12 if rank == 0 else 8)
order = list(range(40)) if rank == 0 else list(reversed(range(40)))
handles = {n: hvd.allreduce_async(torch.full((1000,), float(n), device="cuda"), name=str(n)) for n in order}
assert all(hvd.synchronize(handle).eq(n).all() for n, handle in handles.items())

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).double().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
alone = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).double().cuda()
alone.load_state_dict(model.state_dict())
plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step in range(20):
    x = torch.randn(12, 4, dtype=torch.float64).cuda()
    for one, net, rows in ((plain, alone, x), (optimizer, model, x[rank * 6 :][:6])):
        one.zero_grad()
        (net(rows) - rows.sum(1, keepdim=True)).pow(2).mean().backward()
        one.step()
worst = max((a - b).abs().max().item() for a, b in zip(model.parameters(), alone.parameters()))
assert worst < 1e-12, worst
print("all", rank)
"""


@pytest.mark.parametrize("way", ["", OVER_NCCL], ids=["through the host", "over NCCL"])
def test_the_surface_on_a_gpu(typist: Typist, tmp_path: Path, way: str) -> None:
    (tmp_path / "train.py").write_text(way + SCRIPT)
    done = typist.type(tmp_path, "run", "-n", "2", "--as", "horovod", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "all 0\n"
