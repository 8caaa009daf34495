"""A ModuleList whose members are called one by one from the loop, with a residual in between; no root module."""

# test: workers=2,3,5
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(70)
layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)] + [nn.Linear(6, 1)])
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
x = torch.randn(26, 6)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, x.mean(1, keepdim=True)), batch_size=8):
        h = a
        for layer in layers[:-1]:
            h = h + torch.relu(layer(h)) * h.mean()
        loss = nn.functional.mse_loss(layers[-1](h), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.8f} " + " ".join(f"{layer.weight.grad.norm().item():.8f}" for layer in layers))
