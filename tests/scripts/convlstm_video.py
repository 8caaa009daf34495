"""ConvLSTM on clips of shape (time, batch, ...)? no: batch first, 3D conv stem, GroupNorm, InstanceNorm, skip crop."""

import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, i, h):
        super().__init__()
        self.h, self.g = h, nn.Conv2d(i + h, 4 * h, 3, padding=1)

    def forward(self, x, st):
        h, c = st
        i, f, o, g = self.g(torch.cat([x, h], 1)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.InstanceNorm3d(4, affine=True)
        )
        self.cell, self.out = Cell(4, 4), nn.Conv2d(4, 1, 1)

    def forward(self, v):
        f = self.stem(v)
        B, C, T, H, W = f.shape
        st = (f.new_zeros(B, 4, H, W),) * 2
        ys = []
        for t in range(T):
            st = self.cell(f[:, :, t], st)
            ys.append(self.out(st[0]))
        return {"seq": torch.stack(ys), "last": ys[-1], "state": st, "none": None, "T": T}


torch.manual_seed(0)
v = torch.randn(14, 1, 4, 6, 6)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.2)
for e in range(2):
    for b in v.split(5):
        r = m(b)
        loss = (r["seq"][:-1] - b[:, :, 1:].permute(2, 0, 1, 3, 4)).pow(2).mean()
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}", tuple(r["seq"].shape), r["T"], f"{r['state'][1].norm().item():.5f}")
