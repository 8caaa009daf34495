"""Weights initialised after construction, with a generator and with apply."""

import torch
from torch import nn


def init(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight, generator=torch.Generator().manual_seed(3))
        nn.init.constant_(module.bias, 0.01)


torch.manual_seed(124)
model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 1))
model.apply(init)
with torch.no_grad():
    model[2].weight.mul_(0.5)
    model[0].weight[0] = torch.arange(5) / 5
x = torch.randn(20, 5)
y = x.amax(1, keepdim=True)
print(f"before {nn.functional.mse_loss(model(x), y).item():.8f}")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        model[2].reset_parameters()
    print(f"{loss.item():.8f}")
