"""torch.nn.utils.prune in mid-training, masks and all."""

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, prune

torch.manual_seed(221)
x = torch.randn(25, 4)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        prune.l1_unstructured(model[0], "weight", amount=0.4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if step == 6:
        prune.remove(model[0], "weight")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print(
        f"{step} {loss.item():.8f} {parameters_to_vector(model.parameters()).norm().item():.8f} {(model[0].weight == 0).sum().item()}"
    )
