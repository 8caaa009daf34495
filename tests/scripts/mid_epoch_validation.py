"""Validation in the middle of an epoch, every three steps, between forward calls of training."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(191)
x = torch.randn(70, 5)
y = x.sum(1, keepdim=True).sin()
train_loader = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=7, shuffle=True)
valid_loader = DataLoader(TensorDataset(x[50:], y[50:]), batch_size=8)
model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)


@torch.no_grad()
def validate():
    model.eval()
    losses = [nn.functional.mse_loss(model(a), b, reduction="none").flatten() for a, b in valid_loader]
    model.train()
    return torch.cat(losses).mean().item()


step = 0
for epoch in range(2):
    for a, b in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 3 == 0:
            print(f"step {step} train {loss.item():.8f} valid {validate():.8f}")
