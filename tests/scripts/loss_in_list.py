"""Losses kept with their graphs, averaged with torch.stack at the end of an epoch; loss compared with tensors."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(235)
x = torch.randn(31, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
best = torch.tensor(float("inf"))
for epoch in range(4):
    losses = []
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=7, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        if loss < best:
            best = loss.detach().clone()
    print(f"mean {torch.stack(losses).mean().item():.8f} best {best:.8f} last {losses[-1].detach().numpy():.8f}")
