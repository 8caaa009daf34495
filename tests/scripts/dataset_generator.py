"""The data set draws from a generator of its own: numpy's, Python's and torch's."""

# test: workers=2
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

coin = random.Random(4)


class Jittered(Dataset):
    def __init__(self, kind):
        self.kind, self.base = kind, torch.linspace(-1, 1, 20)
        self.rng, self.generator = np.random.default_rng(3), torch.Generator().manual_seed(3)

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if self.kind == "numpy":
            noise = self.rng.normal(size=3).astype(np.float32)
        elif self.kind == "torch":
            noise = torch.randn(3, generator=self.generator).numpy()
        else:
            noise = np.array([coin.gauss(0, 1) for _ in range(3)], dtype=np.float32)
        return torch.from_numpy(self.base[i].item() + 0.1 * noise), self.base[i : i + 1]


torch.manual_seed(241)
for kind in ("numpy", "torch", "python"):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for epoch in range(2):
        for x, y in DataLoader(Jittered(kind), batch_size=6, shuffle=True):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{kind} {loss.item():.8f}")
