# A learner whose `parameters()` returns its list of weights, as in hand-written meta learning.
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList()
        for shape in ((16, 6), (16,), (3, 16), (3,)):
            self.vars.append(nn.Parameter(torch.randn(shape) * 0.3))

    def forward(self, x, vars=None):
        vars = self.vars if vars is None else vars
        return F.linear(F.relu(F.linear(x, vars[0], vars[1])), vars[2], vars[3])

    def parameters(self):
        return self.vars


class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Learner()

    def forward(self, x, y, x_new, y_new):
        grads = torch.autograd.grad(F.cross_entropy(self.net(x), y), self.net.parameters())
        fast = [p - 0.1 * g for p, g in zip(self.net.parameters(), grads)]
        return F.cross_entropy(self.net(x_new, fast), y_new)


net = Learner()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(10, 6)
    loss = F.cross_entropy(net(x), (x.sum(1) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, f"{loss.item():.6f}")

meta = Meta()
optimizer = torch.optim.SGD(meta.net.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(20, 6)
    y = (x[:, 0] > x[:, 1]).long()
    loss = meta(x[:10], y[:10], x[10:], y[10:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("meta", step, f"{loss.item():.6f}")
