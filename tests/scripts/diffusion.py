"""A toy diffusion model: noise and time steps drawn in the loop, an EMA, a sampling loop without gradients."""

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(10, 6), nn.Sequential(nn.Linear(8, 24), nn.SiLU(), nn.Linear(24, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


torch.manual_seed(206)
alpha = torch.linspace(0.99, 0.7, 10).cumprod(0)
model = Denoiser()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(15):
    x = torch.randn(13, 2) * 0.2 + 1
    t, noise = torch.randint(0, 10, (13,)), torch.randn(13, 2)
    a = alpha[t][:, None]
    loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 4:
        print(f"{step} {loss.item():.8f}")
with torch.no_grad():
    x = torch.randn(5, 2)
    for i in reversed(range(10)):
        predicted = model(x, torch.full((5,), i))
        x = (x - 0.1 * predicted) * 1.02 + (0.05 * torch.randn_like(x) if i else 0)
print(f"samples {x.mean().item():.7f} {x.std().item():.7f}")
