"""CycleGAN: two generators and two discriminators in chains, requires_grad toggled, an image pool with Python's random."""

# test: workers=2,3
import itertools
import random

import torch
from torch import nn

random.seed(9)
torch.manual_seed(304)


def net(out):
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, out))


G_A, G_B, D_A, D_B = net(3), net(3), net(1), net(1)
opt_G = torch.optim.SGD(itertools.chain(G_A.parameters(), G_B.parameters()), lr=0.05)
opt_D = torch.optim.SGD(itertools.chain(D_A.parameters(), D_B.parameters()), lr=0.05)
pool = []


def set_requires_grad(nets, flag):
    for n in nets:
        for p in n.parameters():
            p.requires_grad = flag


def query(fakes):
    chosen = []
    for fake in fakes.detach():
        if len(pool) < 8:
            pool.append(fake)
            chosen.append(fake)
        elif random.random() > 0.5:
            i = random.randrange(8)
            chosen.append(pool[i])
            pool[i] = fake
        else:
            chosen.append(fake)
    return torch.stack(chosen)


mse, l1 = nn.MSELoss(), nn.L1Loss()
for step in range(5):
    real_A, real_B = torch.randn(7, 3), torch.randn(7, 3) + 1
    fake_B, fake_A = G_A(real_A), G_B(real_B)
    set_requires_grad([D_A, D_B], False)
    opt_G.zero_grad()
    adversarial = mse(D_A(fake_B), torch.ones(7, 1)) + mse(D_B(fake_A), torch.ones(7, 1))
    cycle = l1(G_B(fake_B), real_A) + l1(G_A(fake_A), real_B)
    identity = l1(G_A(real_B), real_B) + l1(G_B(real_A), real_A)
    loss_G = adversarial + 10 * cycle + 5 * identity
    loss_G.backward()
    opt_G.step()
    set_requires_grad([D_A, D_B], True)
    opt_D.zero_grad()
    for D, real, fake in ((D_A, real_B, query(fake_B)), (D_B, real_A, fake_A)):
        loss_D = (mse(D(real), torch.ones(7, 1)) + mse(D(fake.detach()), torch.zeros(7, 1))) * 0.5
        loss_D.backward()
    opt_D.step()
    print(
        f"{step} G {loss_G.item():.7f} cycle {cycle.item():.7f} D {loss_D.item():.7f} {G_A[0].weight.grad.norm().item():.7f}"
    )
