"""forward leaves python numbers in attributes: sparsity, entropy."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)
        self.sparsity = 0.0

    def forward(self, x):
        h = F.relu(self.a(x))
        self.sparsity = (h == 0).float().mean().item()
        return self.b(h)


torch.manual_seed(0)
x = torch.randn(30, 6)
y = x[:, :3].argmax(1)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(6):
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(e, f"{loss.item():.6f} sparsity {m.sparsity:.6f}")
