# framework: higher
# program: MAML with `innerloop_ctx` over tasks of sine waves
import higher
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))
meta = torch.optim.Adam(net.parameters(), lr=1e-3)


def tasks(n):
    amp, phase = torch.rand(n) * 4 + 0.1, torch.rand(n) * 3.14
    x = torch.rand(n, 20, 1) * 10 - 5
    return x, amp[:, None, None] * torch.sin(x + phase[:, None, None])


for step in range(5):
    x, y = tasks(4)
    inner = torch.optim.SGD(net.parameters(), lr=1e-2)
    meta.zero_grad()
    losses = []
    for i in range(4):
        with higher.innerloop_ctx(net, inner, copy_initial_weights=False) as (fnet, diffopt):
            for _ in range(3):
                diffopt.step(F.mse_loss(fnet(x[i, :10]), y[i, :10]))
            loss = F.mse_loss(fnet(x[i, 10:]), y[i, 10:])
            losses.append(loss.detach())
            loss.backward()
    meta.step()
    print(step, f"{sum(losses).item() / 4:.5f}")
