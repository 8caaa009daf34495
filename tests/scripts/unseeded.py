"""No seed anywhere: numbers can't equal another run's, but all workers must have the same."""

# test: agree=no seed: every plain run prints other numbers
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(32, 4)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * random.random() + 0.01 * np.random.rand())
for epoch in range(3):
    for a, b in loader:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.8f} coin {random.random():.6f} {np.random.rand():.6f}")
