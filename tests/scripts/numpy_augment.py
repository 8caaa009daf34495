"""Augmentation drawn from numpy's and Python's global streams in __getitem__."""

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if np.random.rand() < 0.5:
            image = image[:, ::-1].copy()
        image = image + np.random.normal(0, 0.1, image.shape).astype(np.float32)
        if random.random() < 0.3:
            image = image * 0.5
        return torch.from_numpy(image), self.labels[i]


random.seed(3)
np.random.seed(3)
torch.manual_seed(3)
images = np.random.rand(26, 4, 4).astype(np.float32)
loader = DataLoader(Augmented(images, np.arange(26) % 2), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{epoch} mean {x.mean().item():.7f} loss {loss.item():.8f}")
print(f"next draws {np.random.rand():.8f} {random.random():.8f} {torch.rand(()).item():.8f}")
