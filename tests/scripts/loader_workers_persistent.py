"""Persistent loader workers with prefetching, worker_init_fn, and random augmentation drawn in the workers."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __len__(self):
        return 26

    def __getitem__(self, i):
        base = torch.linspace(-1, 1, 6) * (i / 13 - 1)
        return base + 0.1 * torch.randn(6), torch.tensor([i / 13 - 1 + 0.1 * np.random.rand() + 0.1 * random.random()])


def init(worker):
    np.random.seed(100 + worker)


torch.manual_seed(8)
loader = DataLoader(
    Noisy(), batch_size=5, shuffle=True, num_workers=2, persistent_workers=True, prefetch_factor=2, worker_init_fn=init
)
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} inputs {x.sum().item():.7f} loss {loss.item():.8f}")
