"""Alex-style: a default device, and a hook on a tensor inside forward: it is called once for each gradient."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.o = nn.GRUCell(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        h = x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            h = self.c(x[:, t], h)
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-0.002, 0.002))
        return self.o(h)


torch.set_default_device("cpu")
torch.manual_seed(0)
x = torch.randn(30, 5, 3)
y = (x.sum((1, 2)) > 0).long()
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.5, momentum=0.9)
for e in range(8):
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.6f}")
