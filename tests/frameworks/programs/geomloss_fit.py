# framework: geomloss
# program: a generator that fits points by Sinkhorn divergence and a kernel distance
import torch
import torch.nn as nn
from geomloss import SamplesLoss

torch.manual_seed(0)
gen = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(gen.parameters(), 1e-2)
loss_fn = SamplesLoss("sinkhorn", p=2, blur=0.1, backend="tensorized")
mmd = SamplesLoss("gaussian", blur=0.5, backend="tensorized")
for i in range(6):
    x = gen(torch.randn(64, 4))
    t = torch.rand(64) * 6.28
    y = torch.stack([t.cos(), t.sin()], 1)
    loss = loss_fn(x, y) + 0.1 * mmd(x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.6f}")
