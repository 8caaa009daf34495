"""Sequence-first LSTM with a zero-initialised head: the first output tells nothing."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 8)
        self.head = nn.Linear(8, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


torch.manual_seed(0)
x = torch.randn(12, 9, 3)
y = x.cumsum(0).sum(-1, keepdim=True)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.1)
for e in range(8):
    loss = (m(x) - y).pow(2).mean()
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.6f}")
