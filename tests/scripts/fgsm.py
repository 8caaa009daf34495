"""Adversarial training: the gradient of the loss with respect to the inputs."""

# test: workers=2,3,5
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(114)
x = torch.randn(32, 6)
y = (x[:, 0] + x[:, 1] > 0).long()
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for step in range(12):
    rows = torch.randperm(32)[:11]
    clean = x[rows].clone().requires_grad_(True)
    F.cross_entropy(model(clean), y[rows]).backward()
    size = clean.grad.norm().item()
    attacked = (clean + 0.1 * clean.grad.sign()).detach()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(attacked), y[rows])
    loss.backward()
    optimizer.step()
    print(f"input grad {size:.8f} loss {loss.item():.8f}")
