"""forward called directly on a model whose forward uses bare parameters: no call of any module is ever made."""

import torch
from torch import nn


class Poly(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return sum(c * x**k for k, c in enumerate(self.c))


torch.manual_seed(68)
x = torch.linspace(-1, 1, 40)
y = torch.exp(x)
model = Poly()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
for step in range(12):
    loss = (model.forward(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
print(model.c.tolist())
