"""A physics-informed network: derivatives of the output by the input in the loss (u'' = -u)."""

# test: workers=2,3,5
import torch
from torch import nn

torch.manual_seed(168)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    t = (torch.rand(21, 1) * 3).requires_grad_(True)
    u = model(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    residual = (ddu + u).pow(2).mean()
    start = (model(torch.zeros(1, 1)) - 1).pow(2).mean()
    loss = residual + 10 * start
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{residual.item():.8f} {start.item():.8f} {model[0].weight.grad.norm().item():.7f}")
