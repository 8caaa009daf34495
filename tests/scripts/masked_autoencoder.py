"""Masked autoencoder: random masks by the script, shuffle and gather of patches, mask token, loss on masked patches."""

import torch
from torch import nn


class MAE(nn.Module):
    def __init__(self, d=16, n=9):
        super().__init__()
        self.proj, self.pos, self.tok = (
            nn.Linear(4, d),
            nn.Parameter(torch.randn(1, n, d) * 0.1),
            nn.Parameter(torch.zeros(1, 1, d)),
        )

        def lay():
            return nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True, norm_first=True)

        self.enc, self.dec, self.out = lay(), lay(), nn.Linear(d, 4)

    def forward(self, p, noise, ratio=0.6):
        B, n, _ = p.shape
        keep = int(n * (1 - ratio))
        order = noise.argsort(1)
        back = order.argsort(1)
        h = self.proj(p) + self.pos
        vis = h.gather(1, order[:, :keep, None].expand(-1, -1, h.shape[-1]))
        z = self.enc(vis)
        full = torch.cat([z, self.tok.expand(B, n - keep, -1)], 1).gather(
            1, back[..., None].expand(-1, -1, h.shape[-1])
        )
        mask = torch.ones(B, n)
        mask[:, :keep] = 0
        return self.out(self.dec(full + self.pos)), mask.gather(1, back)


torch.manual_seed(0)
imgs = torch.randn(40, 6, 6).cumsum(1).cumsum(2) * 0.2
m = MAE()
o = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)
for e in range(2):
    for i in torch.randperm(40).split(12):
        p = imgs[i].unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(i), 9, 4)
        r, mask = m(p, torch.rand(len(i), 9), ratio=0.6)
        loss = (((r - p) ** 2).mean(-1) * mask).sum() / mask.sum()
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}")
