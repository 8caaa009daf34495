"""A layer that normalises its own weight in place in forward, every call a bit (not idempotent)."""

import torch
from torch import nn


class L(nn.Linear):
    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.weight.mul_(0.99)
        return super().forward(x)


torch.manual_seed(0)
m = nn.Sequential(L(5, 8), nn.ReLU(), L(8, 1))
x = torch.randn(24, 5)
y = x.sum(1, keepdim=True)
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(6):
    loss = (m(x) - y).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.6f} {m[0].weight.norm().item():.6f}")
