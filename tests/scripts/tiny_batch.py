"""Batches of 2 rows and, last, of 1: fewer rows than workers."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(2)
data = TensorDataset(torch.randn(7, 4), torch.randn(7, 1))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
mse = nn.MSELoss()
for epoch in range(5):
    for x, y in DataLoader(data, batch_size=2, shuffle=True):
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
        print(f"{loss.item():.8f} {norm.item():.8f}")
print(f"{model[0].weight.double().pow(2).sum().item():.8f}")
