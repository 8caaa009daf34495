"""Grad-CAM as in the tutorial: a hook inside forward keeps the gradient of the activations."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.c = nn.Linear(4, 3)
        self.gradients = None

    def save(self, g):
        self.gradients = g

    def forward(self, x):
        a = self.f(x)
        if a.requires_grad:
            a.register_hook(self.save)
        return self.c(a.mean((2, 3)))


torch.manual_seed(0)
x = torch.randn(20, 1, 6, 6)
y = torch.randint(0, 3, (20,))
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.5)
for e in range(4):
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.6f}")
m.eval()
out = m(x[:6])
out[:, 0].sum().backward()
w = m.gradients.mean((2, 3))
a = m.f(x[:6]).detach()
cam = F.relu((w[:, :, None, None] * a).sum(1))
print(cam.shape, f"{cam.sum().item():.6f}", [f"{v:.5f}" for v in cam.flatten(1).max(1).values.tolist()])
