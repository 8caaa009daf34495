"""A GAN: two models, two optimizers, detach, no DataLoader."""

# test: workers=2,3,5
import torch
from torch import nn

torch.manual_seed(49)
G = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.SGD(G.parameters(), lr=0.1)
opt_d = torch.optim.SGD(D.parameters(), lr=0.1)
bce = nn.BCEWithLogitsLoss()
batch = 17
for step in range(15):
    real = torch.randn(batch, 2) * 0.5 + 2
    fake = G(torch.randn(batch, 4))
    d_loss = bce(D(real), torch.ones(batch, 1)) + bce(D(fake.detach()), torch.zeros(batch, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = bce(D(fake), torch.ones(batch, 1))
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    print(f"step {step} D {d_loss.item():.8f} G {g_loss.item():.8f} mean {fake.mean().item():.8f}")
