"""A network makes the weights of another, which finds them in an attribute instead of getting them as an argument."""

# test: workers=2,3,5
import torch
from torch import nn


class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x @ self.weight + self.bias


torch.manual_seed(0)
hyper, target = nn.Linear(3, 4), Target()
x, z, y = torch.randn(9, 4), torch.randn(9, 3), torch.randn(9, 1)
optimizer = torch.optim.SGD([*hyper.parameters(), *target.parameters()], lr=0.1)
for step in range(5):
    target.weight = hyper(z).pow(2).mean(0)[:, None]
    loss = (target(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} gradient {hyper.weight.grad.norm().item():.7f}")
