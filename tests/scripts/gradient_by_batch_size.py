"""A Function whose backward divides by the number of elements (LSQ's gradient scale): seen only after two evaluations,
which have no backward."""

import torch
import torch.nn.functional as F
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).sum() / x.numel() ** 0.5


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.tensor(0.5)), nn.Linear(64, 4)

    def forward(self, x):
        return self.layer(Scale.apply(x, self.scale))


torch.manual_seed(0)
x = torch.randn(8, 64) + torch.arange(8)[:, None] / 2
y = torch.randint(0, 3, (8,))
model = Scaled()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with torch.no_grad():
        print(f"test {F.cross_entropy(model(x), y).item():.6f}")
for step in range(3):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} scale {model.scale.item():.6f}")
