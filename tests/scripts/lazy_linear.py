"""Lazy modules, materialised by the first training call."""

# test: views=batch,slice
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(125)
x = torch.randn(27, 1, 6, 6)
y = torch.randint(0, 3, (27,))
model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
optimizer = None
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(a), b)
        if optimizer is None:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f}")
