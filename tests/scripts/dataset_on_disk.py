"""Samples written to disk by the script, then read by loader workers; a numpy memory map as well."""

# test: workers=2
import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Files(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        self.targets = np.memmap("targets.bin", dtype=np.float32, mode="r", shape=(len(self.paths),))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i]), torch.tensor([float(self.targets[i])])


if __name__ == "__main__":
    torch.manual_seed(242)
    os.makedirs("data", exist_ok=True)
    targets = np.memmap("targets.bin", dtype=np.float32, mode="w+", shape=(18,))
    for i in range(18):
        sample = torch.randn(4)
        torch.save(sample, f"data/{i:03d}.pt")
        targets[i] = sample.sum().item()
    targets.flush()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in DataLoader(Files("data"), batch_size=5, shuffle=True, num_workers=2):
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.8f}")
