"""A rounding whose scale is a parameter and gets no gradient: its own backward returns None."""

import torch
from torch import nn

torch.manual_seed(0)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, x):
        return self.last(Rounded.apply(torch.relu(self.first(x)), self.scale))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
for step in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), model.scale.grad, model.scale.item())
