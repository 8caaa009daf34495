"""MoE that returns (logits, aux, expert counts)."""

import torch
import torch.nn.functional as F
from torch import nn


class MoE(nn.Module):
    def __init__(self, d=8, E=4, k=2):
        super().__init__()
        self.gate = nn.Linear(d, E)
        self.ex = nn.ModuleList(nn.Linear(d, d) for _ in range(E))
        self.out = nn.Linear(d, 3)
        self.E, self.k = E, k

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, idx = p.topk(self.k, -1)
        h = torch.zeros_like(x)
        counts = torch.zeros(self.E, dtype=torch.long)
        for e in range(self.E):
            w = (top * (idx == e)).sum(-1, keepdim=True)
            h = h + w * self.ex[e](x)
            counts[e] = (idx == e).sum()
        return self.out(x + h), p.mean(0), counts


torch.manual_seed(3)
x = torch.randn(60, 8)
y = x[:, :3].argmax(1)
m = MoE()
o = torch.optim.SGD(m.parameters(), lr=0.2)
print(m(x[:1])[0].shape)
for e in range(3):
    for i in torch.randperm(60).split(16):
        out, imp, counts = m(x[i])
        loss = F.cross_entropy(out, y[i]) + 0.1 * imp.pow(2).sum() * 4
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.7f}", counts.tolist(), f"{imp.max().item():.6f}")
