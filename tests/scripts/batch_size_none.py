"""A dataset that yields whole batches: DataLoader(batch_size=None)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i >= 6:
            raise IndexError(i)
        g = torch.Generator().manual_seed(i)
        x = torch.randn(5 + i, 4, generator=g)
        return x, x.norm(dim=1)


torch.manual_seed(30)
model = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(3):
    for x, y in DataLoader(Batches(), batch_size=None, shuffle=True):
        loss = nn.functional.mse_loss(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rows {len(x)} loss {loss.item():.8f}")
