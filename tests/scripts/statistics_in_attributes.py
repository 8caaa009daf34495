"""Layers append their auxiliary losses to a list attribute; metrics in a dict attribute."""

# test: noticed=stores a result in its attribute stats
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Linear(d, d)
        self.history = []

    def forward(self, x):
        h = torch.tanh(self.f(x))
        self.history.append(h.pow(2).mean().item())
        return x + h


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(6) for _ in range(2))
        self.out = nn.Linear(6, 3)
        self.stats = {}

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        o = self.out(x)
        self.stats["act"] = x.abs().mean().item()
        self.stats["max"] = x.max().item()
        return o


torch.manual_seed(0)
x = torch.randn(30, 6)
y = x[:, :3].argmax(1)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(6):
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(
        e,
        f"{loss.item():.6f} act {m.stats['act']:.6f} max {m.stats['max']:.6f} hist {len(m.blocks[0].history)} {m.blocks[0].history[-1]:.6f}",
    )
