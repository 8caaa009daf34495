"""A mask with the smallest float in a buffer: the buffer keeps its numbers, and does not overflow."""

import torch
import torch.nn.functional as F
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), torch.finfo(torch.float32).min), 1))

    def forward(self, x):
        return self.layer(x) + 0.0 * self.mask.clamp(min=-1.0).sum()


torch.manual_seed(0)
x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
model = Masked()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model.train()
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        test = F.cross_entropy(model(x), y)
    print(f"{step} loss {loss.item():.6f} test {test.item():.6f} mask {model.mask[0, 1].item():.6e}")
