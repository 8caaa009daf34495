"""A network that isn't a Module but an ordinary class holding modules."""

import torch
from torch import nn


class Net:
    def __init__(self):
        self.a, self.b = nn.Linear(4, 10), nn.Linear(10, 2)

    def __call__(self, x):
        return self.b(torch.sigmoid(self.a(x)))

    def parameters(self):
        return [*self.a.parameters(), *self.b.parameters()]


torch.manual_seed(71)
x = torch.randn(21, 4)
y = torch.randn(21, 2) * 0.1 + x[:, :2]
net = Net()
opt = torch.optim.SGD(net.parameters(), 0.3)
for i in range(12):
    loss = torch.nn.functional.huber_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{i:02d} {loss.item():.9f}")
