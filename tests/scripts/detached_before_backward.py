"""In the slice view: the loss read before its backward, by item(), float() and comparison."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(236)
x = torch.randn(31, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=7, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        early = loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"before {early:.8f} after {loss.item():.8f} {float(loss):.8f} {abs(early - loss.item()) < 1e-6}")
