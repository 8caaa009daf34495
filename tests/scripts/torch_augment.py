"""Augmentation drawn from torch's stream in __getitem__, and noise drawn in the loop after it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crops(Dataset):
    def __init__(self):
        self.rows = torch.randn(24, 12)

    def __len__(self):
        return 24

    def __getitem__(self, i):
        start = torch.randint(0, 5, ()).item()
        return self.rows[i, start : start + 8] * (0.5 + torch.rand(1)), self.rows[i].mean()


torch.manual_seed(22)
loader = DataLoader(Crops(), batch_size=7, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for x, y in loader:
        x = x + 0.05 * torch.randn_like(x)
        loss = nn.functional.l1_loss(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{x.sum().item():.6f} {loss.item():.8f}")
