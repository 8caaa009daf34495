"""The loop checkpoints calls of a model in the old, reentrant way: their outputs leave through C++."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(1)
m1, m2 = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 2)
x = torch.randn(11, 4, requires_grad=True)
o = torch.optim.SGD([*m1.parameters(), *m2.parameters()], lr=0.1)
for s in range(4):
    h = checkpoint(m1, x, use_reentrant=True)
    loss = m2(h).pow(2).mean() + 0.1 * h.mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.8f}")
