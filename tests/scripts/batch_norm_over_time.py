"""BatchNorm1d over (batch x time) inside, running stats printed."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.bn, self.o = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.bn(self.c(x).reshape(B * T, 6)).relu().reshape(B, T, 6)
        return self.o(h.mean(1)), h


torch.manual_seed(0)
x = torch.randn(29, 5, 3) * 2 + 1
y = (x.sum((1, 2)) > 15).long()
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.2)
for e in range(2):
    for i in torch.randperm(29).split(7):
        out, h = m(x[i])
        loss = nn.functional.cross_entropy(out, y[i]) + 1e-2 * h.pow(2).mean()
        o.zero_grad()
        loss.backward()
        o.step()
        print(f"{loss.item():.6f}")
    print(m.bn.running_mean.numpy().round(5).tolist())
    m.eval()
    print(f"{nn.functional.cross_entropy(m(x)[0], y).item():.6f}")
    m.train()
