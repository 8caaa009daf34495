"""WGAN with a gradient penalty: autograd.grad with create_graph through the critic."""

# test: workers=2,3,5
import torch
from torch import autograd, nn

torch.manual_seed(51)
G = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))
C = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
opt_g, opt_c = torch.optim.SGD(G.parameters(), lr=0.05), torch.optim.SGD(C.parameters(), lr=0.05)


def gradient_penalty(real, fake):
    alpha = torch.rand(real.size(0), 1)
    mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    scores = C(mixed)
    (grads,) = autograd.grad(scores, mixed, grad_outputs=torch.ones_like(scores), create_graph=True, retain_graph=True)
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()


for step in range(8):
    for _ in range(2):
        real = torch.randn(10, 2) + torch.tensor([2.0, -1.0])
        fake = G(torch.randn(10, 3)).detach()
        gp = gradient_penalty(real, fake)
        c_loss = C(fake).mean() - C(real).mean() + 10 * gp
        opt_c.zero_grad()
        c_loss.backward()
        opt_c.step()
    g_loss = -C(G(torch.randn(10, 3))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    print(
        f"{step} critic {c_loss.item():.7f} penalty {gp.item():.8f} generator {g_loss.item():.8f} |w| {C[0].weight.norm().item():.8f}"
    )
