"""The other way: losses of several micro-batches added up, one backward."""

import torch
from torch import nn

torch.manual_seed(104)
x = torch.randn(42, 4)
y = x[:, :1].exp()
model = nn.Sequential(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    total = 0
    for micro in torch.randperm(42)[:15].split(4):
        total = total + nn.functional.mse_loss(model(x[micro]), y[micro], reduction="sum") / 15
    optimizer.zero_grad(set_to_none=False)
    total.backward()
    optimizer.step()
    print(f"{total.item():.8f} {model[0].weight.grad.abs().max().item():.8f}")
