"""Summed losses written in the loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(43)
x = torch.randn(28, 4)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1))
criterion = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
for epoch in range(4):
    epoch_loss = 0.0
    for a, b in loader:
        loss = criterion(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    print(f"epoch {epoch}: {epoch_loss / len(loader.dataset):.8f}")
