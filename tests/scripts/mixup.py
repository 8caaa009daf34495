"""Mixup in the loop: rows of the batch are mixed outside the model with a Beta draw from numpy."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

np.random.seed(230)
torch.manual_seed(230)
x = torch.randn(35, 5)
y = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        lam, order = np.random.beta(0.4, 0.4), torch.randperm(len(a))
        out = model(lam * a + (1 - lam) * a[order])
        loss = lam * nn.functional.cross_entropy(out, b) + (1 - lam) * nn.functional.cross_entropy(out, b[order])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{lam:.6f} {loss.item():.8f}")
