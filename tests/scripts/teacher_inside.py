"""The momentum update of a teacher is made inside forward, on parameters: the proof must not make it too."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class S(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.p = nn.Linear(6, 4), nn.Linear(4, 4)
        self.k = copy.deepcopy(self.q)
        [p.requires_grad_(False) for p in self.k.parameters()]

    def forward(self, a, b):
        with torch.no_grad():
            for p, r in zip(self.k.parameters(), self.q.parameters()):
                p.data = p.data * 0.7 + r.data * 0.3
            k = F.normalize(self.k(b), dim=1)
        return 2 - 2 * (F.normalize(self.p(self.q(a)), dim=1) * k).sum(1)


torch.manual_seed(0)
m = S()
x = torch.randn(48, 6)
o = torch.optim.SGD([*m.q.parameters(), *m.p.parameters()], lr=0.5)
for e in range(2):
    for i in torch.randperm(48).split(12):
        loss = m(x[i] + 0.1 * torch.randn(12, 6), x[i]).mean()
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f} {m.k.weight.norm().item():.6f}")
