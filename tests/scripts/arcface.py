"""A margin head that takes features and labels, after a backbone."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ArcHead(nn.Module):
    def __init__(self, width, classes, scale=8.0, margin=0.3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width))
        self.scale, self.cos_m, self.sin_m = scale, math.cos(margin), math.sin(margin)

    def forward(self, features, labels):
        cosine = F.linear(F.normalize(features), F.normalize(self.weight))
        sine = (1 - cosine.pow(2)).clamp(min=1e-6).sqrt()
        moved = cosine * self.cos_m - sine * self.sin_m
        one_hot = F.one_hot(labels, cosine.size(1))
        return self.scale * torch.where(one_hot.bool(), moved, cosine)


torch.manual_seed(57)
x = torch.randn(30, 8)
y = x[:, :4].argmax(1)
backbone, head = nn.Sequential(nn.Linear(8, 12), nn.PReLU(), nn.Linear(12, 6)), ArcHead(6, 4)
optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
for epoch in range(4):
    for a, b in zip(x.chunk(3), y.chunk(3)):
        loss = F.cross_entropy(head(backbone(a), b), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.8f} {head.weight.grad.norm().item():.8f}")
