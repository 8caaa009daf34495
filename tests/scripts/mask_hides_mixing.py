"""A policy masks the logits of forbidden actions with -1e9; next to such numbers the mixing of its own batch norm looks
like rounding."""

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x):
        if self.training:
            mean, variance = x.mean(0), x.var(0, unbiased=False)
        else:
            mean, variance = self.mean, self.variance
        return (x - mean) / (variance + 1e-5).sqrt() * self.gain


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), Norm(16), nn.Linear(16, 5)

    def forward(self, x, forbidden):
        return self.last(self.norm(self.first(x)).relu()).masked_fill(forbidden, -1e9)


torch.manual_seed(0)
model = Policy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(16, 6) + torch.arange(16)[:, None] / 4
    forbidden = torch.rand(16, 5) < 0.3
    forbidden[:, 0] = False
    loss = F.cross_entropy(model(x, forbidden), torch.zeros(16, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f}")
