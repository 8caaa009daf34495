# test: views=batch,slice
"""Accumulation whose gradients are looked at half way, but only now and then; an odd last group; a step skipped."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(92, 6)
y = (x[:, :1] - x[:, 1:2] * x[:, 2:3]).tanh()
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
pending = 0
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        loss = nn.functional.mse_loss(model(a), b) / 4
        loss.backward()
        pending += 1
        if i % 7 == 1:
            print(f"peek {i} {sum(p.grad.norm().item() for p in model.parameters()):.7f}")
        if i == 10 and epoch == 1:
            optimizer.zero_grad()  # a group is thrown away
            pending = 0
        if pending == 4 or (pending and i == len(loader) - 1):
            optimizer.step()
            optimizer.zero_grad()
            pending = 0
            print(f"{loss.item():.7f} {model[0].weight.sum().item():.7f}")
