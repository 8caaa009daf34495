"""Switch-style MoE whose returned loss has a small load-balancing term over the batch."""

# test: right-or-refused=a small part of the returned loss looks at the whole batch
import torch
import torch.nn.functional as F
from torch import nn


class MoE(nn.Module):
    def __init__(self, d=8, E=4):
        super().__init__()
        self.gate = nn.Linear(d, E)
        self.ex = nn.ModuleList(nn.Linear(d, d) for _ in range(E))
        self.out = nn.Linear(d, 3)
        self.E = E

    def forward(self, x, y):
        p = self.gate(x).softmax(-1)
        top, idx = p.max(-1)
        h = torch.zeros_like(x)
        for e in range(self.E):
            m = idx == e
            if m.any():
                h[m] = top[m, None] * self.ex[e](x[m])
        f = F.one_hot(idx, self.E).float().mean(0)
        aux = self.E * (f * p.mean(0)).sum()
        return F.cross_entropy(self.out(x + h), y) + 0.01 * aux


torch.manual_seed(3)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
m = MoE()
o = torch.optim.SGD(m.parameters(), lr=0.2)
for e in range(3):
    for i in torch.randperm(256).split(64):
        loss = m(x[i], y[i])
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.7f}")
