"""L2 and L1 penalties on the weights, written outside the model."""

# test: views=batch,slice
# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(52)
x = torch.randn(40, 8)
y = x[:, :1] - 2 * x[:, 1:2]
model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=9, shuffle=True):
        loss = nn.functional.mse_loss(model(a), b)
        loss = loss + 0.05 * sum(p.pow(2).sum() for p in model.parameters()) + 0.01 * model[0].weight.abs().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f} {model[0].weight.grad.norm().item():.8f}")
