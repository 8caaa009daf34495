"""A last batch of 2 rows: slices of one row and of none, on which plain batch norm would fail."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(319)
x = torch.randn(22, 4) * 2 + 1
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=5, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.7f} {model[1].running_var.sum().item():.7f}")
