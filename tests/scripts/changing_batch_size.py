"""The batch grows by epoch; a new loader each time; sizes below and above the number of workers."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(34)
x = torch.randn(33, 3)
data = TensorDataset(x, x.abs().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for size in (1, 2, 4, 16, 33):
    for xb, yb in DataLoader(data, batch_size=size, shuffle=True):
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"batch {size} loss {loss.item():.8f}")
