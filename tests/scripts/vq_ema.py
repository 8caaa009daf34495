"""VQ-VAE with EMA codebook in buffers."""

import torch
import torch.nn.functional as F
from torch import nn


class VQ(nn.Module):
    def __init__(self, K=8, d=4, decay=0.9):
        super().__init__()
        self.decay = decay
        self.register_buffer("code", torch.randn(K, d))
        self.register_buffer("n", torch.ones(K))
        self.register_buffer("w", self.code.clone())

    def forward(self, z):
        i = torch.cdist(z, self.code).argmin(1)
        q = self.code[i]
        if self.training:
            with torch.no_grad():
                oh = F.one_hot(i, len(self.code)).float()
                self.n.mul_(self.decay).add_(oh.sum(0), alpha=1 - self.decay)
                self.w.mul_(self.decay).add_(oh.t() @ z, alpha=1 - self.decay)
                self.code.copy_(self.w / (self.n[:, None] + 1e-5))
        return z + (q - z).detach(), 0.25 * F.mse_loss(z, q.detach()), i


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.vq, self.dec = nn.Linear(6, 4), VQ(), nn.Linear(4, 6)

    def forward(self, x):
        q, c, i = self.vq(self.enc(x))
        return self.dec(q), c, i


torch.manual_seed(0)
x = torch.randn(64, 6)
m = Model()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(4):
    for b in x.split(20):
        r, c, i = m(b)
        loss = F.mse_loss(r, b) + c
        o.zero_grad()
        loss.backward()
        o.step()
        p = torch.bincount(i, minlength=8).float() / len(i)
        print(f"{loss.item():.6f} perplexity {torch.exp(-(p * (p + 1e-10).log()).sum()).item():.5f}")
