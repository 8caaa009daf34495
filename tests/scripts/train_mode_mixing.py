"""Samples mixed in training mode only, by a shuffle of rows inside forward: a check in eval mode sees nothing."""

# test: right-or-refused=samples are mixed in training mode only
import torch
from torch import nn


class Manifold(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 10), nn.Linear(10, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if self.training:
            h = 0.8 * h + 0.2 * h.flip(0)
        return self.b(h)


torch.manual_seed(232)
x = torch.randn(16, 4)
y = x.sum(1, keepdim=True)
model = Manifold()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
