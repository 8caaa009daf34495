"""Virtual adversarial training: power iteration on the input, eval-free, then entropy; two loaders of unequal length."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(80, 6)
y = (x[:, :2].sum(1) > 0).long() + (x[:, 2] > 0).long()
lab, unl = (
    DataLoader(TensorDataset(x[:20], y[:20]), 8, shuffle=True),
    DataLoader(TensorDataset(x[20:]), 16, shuffle=True, drop_last=True),
)
m = nn.Sequential(nn.Linear(6, 24), nn.Softplus(), nn.Linear(24, 3))
o = torch.optim.SGD(m.parameters(), lr=0.2)


def vat(x, xi=1e-1, eps=1.0):
    with torch.no_grad():
        p = m(x).softmax(1)
    d = F.normalize(torch.randn_like(x), dim=1)
    for _ in range(2):
        d.requires_grad_()
        kl = F.kl_div(m(x + xi * d).log_softmax(1), p, reduction="batchmean")
        (g,) = torch.autograd.grad(kl, d)
        d = F.normalize(g, dim=1).detach()
    return F.kl_div(m(x + eps * d).log_softmax(1), p, reduction="batchmean")


for step, ((a, b), (u,)) in enumerate(zip(itertools.chain.from_iterable(itertools.repeat(lab)), unl)):
    out = m(torch.cat([a, u]))
    lds = vat(torch.cat([a, u]))
    ent = -(out.softmax(1) * out.log_softmax(1)).sum(1).mean()
    loss = F.cross_entropy(out[: len(a)], b) + lds + 0.1 * ent
    o.zero_grad()
    loss.backward()
    o.step()
    print(step, f"{loss.item():.6f} {lds.item():.7f}")
