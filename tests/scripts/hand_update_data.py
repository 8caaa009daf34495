"""No optimizer: p.data.sub_ with momentum kept in a dict; gradients zeroed in place."""

import torch
from torch import nn

torch.manual_seed(91)
x = torch.randn(40, 3)
y = (x[:, 0] * 2 - x[:, 1]).unsqueeze(1)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
for step in range(20):
    i = step * 9 % 40
    a, b = x[i : i + 9], y[i : i + 9]
    loss = (model(a) - b).square().mean()
    loss.backward()
    for name, p in model.named_parameters():
        velocity[name] = 0.8 * velocity[name] + p.grad.data
        p.data.sub_(0.03 * velocity[name])
        p.grad.zero_()
    print(step, f"{loss.item():.8f}")
