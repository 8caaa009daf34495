"""Trains a small CNN on drawn images of CIFAR-10's shape: six kinds of shapes and stripes, under noise.

python train.py
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def draw(count, seed):
    """The same images every time: float32 (count, 3, 32, 32), and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(6, size=count)
    row, column = np.mgrid[-1:1:32j, -1:1:32j].astype(np.float32)
    left, top = rng.uniform(-0.3, 0.3, (2, count, 1, 1)).astype(np.float32)
    radius = rng.uniform(0.4, 0.7, (count, 1, 1)).astype(np.float32)
    color = rng.uniform(0.5, 1.5, (count, 3, 1, 1)).astype(np.float32)
    u, v = column - left, row - top
    shapes = [
        np.hypot(u, v) < radius,  # a disc
        abs(np.hypot(u, v) - radius) < 0.12,  # a ring
        np.maximum(abs(u), abs(v)) < radius,  # a square
        np.minimum(abs(u), abs(v)) < 0.15,  # a cross
        np.sin(6 / radius * u) > 0,  # columns
        np.sin(6 / radius * v) > 0,  # rows
    ]
    masks = np.choose(labels[:, None, None], shapes)[:, None]
    images = color * (masks - np.float32(0.3)) + rng.standard_normal((count, 3, 32, 32), dtype=np.float32)
    return torch.from_numpy(2 * images), torch.from_numpy(labels)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 8 * 8, 64)
        self.fc2 = nn.Linear(64, 6)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.conv1(x)), 2)
        x = F.max_pool2d(F.gelu(self.conv2(x)), 2)
        x = F.gelu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.004)
    parser.add_argument("--images", type=int, default=2560)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_set = TensorDataset(*draw(args.images, seed=1))
    test_set = TensorDataset(*draw(1000, seed=2))
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, 500)
    model = CNN().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(1, args.epochs + 1):
        model.train()
        total = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)

        model.eval()
        hits = 0
        with torch.no_grad():
            for images, labels in test_loader:
                hits += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
        print(f"epoch {epoch} loss {total / len(train_set):.5f} accuracy {hits / len(test_set):.3f}", flush=True)


if __name__ == "__main__":
    main()
