"""The model is grown in the middle of training: a new layer, new optimizer; then pruned and a parameter replaced."""

import torch
from torch import nn

torch.manual_seed(220)
x = torch.randn(25, 4)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if step == 4:
        model = nn.Sequential(model[0], model[1], nn.Linear(8, 8), nn.Tanh(), model[2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if step == 8:
        model[2].weight = nn.Parameter(model[2].weight.detach() * (model[2].weight.abs() > 0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f} {sum(p.numel() for p in model.parameters())}")
