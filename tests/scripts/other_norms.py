"""Layer, group and instance norm: they don't look across samples."""

import torch
from torch import nn

torch.manual_seed(62)
model = nn.Sequential(
    nn.Conv2d(2, 8, 3, padding=1),
    nn.GroupNorm(4, 8),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.InstanceNorm2d(8, affine=True),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.LayerNorm(32),
    nn.Linear(32, 3),
)
x = torch.randn(19, 2, 6, 6)
y = torch.randint(0, 3, (19,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(6):
    for a, b in zip(x.split(5), y.split(5)):
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.8f} {model[1].weight.grad.norm().item():.8f}")
