"""Weights with the channel last in memory, under an optimizer that walks through weights and gradients alike."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(77)
x = torch.randn(20, 3, 6, 6).to(memory_format=torch.channels_last)
y = torch.randint(0, 4, (20,))
model = nn.Sequential(nn.Conv2d(3, 1, 3), nn.Tanh(), nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 4))
model = model.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, fused=True)
for step in range(8):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
