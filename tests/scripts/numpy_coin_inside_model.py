"""The model throws one coin a call, from numpy: the same on every worker, and the same as in one process."""

# test: workers=2
import numpy as np
import torch
from torch import nn


class Coin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return (self.a if np.random.rand() < 0.5 else self.b)(x)


np.random.seed(5)
torch.manual_seed(322)
x = torch.randn(15, 4)
y = x.sum(1, keepdim=True)
model = Coin()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {np.random.rand():.8f}")
