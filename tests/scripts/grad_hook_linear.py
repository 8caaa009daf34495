"""A hook that scales a gradient, and one that masks it: these commute with adding up."""

import torch
from torch import nn

torch.manual_seed(131)
x = torch.randn(24, 5)
y = x.pow(2).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
mask = (torch.rand(10, 5) > 0.5).float()
model[0].weight.register_hook(lambda grad: grad * mask)
handle = model[2].weight.register_hook(lambda grad: 0.1 * grad)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 4:
        handle.remove()
    print(f"{loss.item():.7f} {model[0].weight.grad.norm().item():.8f} {model[2].weight.grad.norm().item():.8f}")
