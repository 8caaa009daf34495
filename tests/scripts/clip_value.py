"""Clipping by value, and adaptive clipping written by hand."""

# test: views=batch,slice
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(100)
x = torch.randn(33, 6) * 2
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        for p in model.parameters():
            limit = 0.1 * p.detach().norm().clamp(min=1e-3)
            if p.grad.norm() > limit:
                p.grad.mul_(limit / p.grad.norm())
        optimizer.step()
        print(f"{loss.item():.6f} {sum(p.grad.norm().item() for p in model.parameters()):.8f}")
