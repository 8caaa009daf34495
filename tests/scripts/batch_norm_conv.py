"""A residual block with BatchNorm2d and frozen affine parameters in one layer."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = (
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels, affine=False, momentum=None),
        )

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(out)))


torch.manual_seed(59)
images = torch.rand(20, 3, 8, 8)
labels = (images[:, 0].mean((1, 2)) > images[:, 1].mean((1, 2))).long()
model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), Block(6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(6):
    pick = torch.randperm(20)[:7]
    logits = model(images[pick])
    loss = nn.functional.cross_entropy(logits, labels[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(
        f"loss {loss.item():.8f} running {model[1].bn1.running_var.mean().item():.8f} {model[1].bn2.running_mean.abs().sum().item():.8f}"
    )
