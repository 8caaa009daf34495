"""The model keeps a hidden layer in an attribute and asks for its gradient; the hook variant without a guard."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.o = nn.Linear(5, 8), nn.Linear(8, 3)
        self.norms = []

    def forward(self, x):
        h = torch.tanh(self.a(x))
        h.retain_grad()
        self.hidden = h
        h.register_hook(lambda g: self.norms.append(g.norm().item()))
        return self.o(h)


torch.manual_seed(0)
x = torch.randn(31, 5)
y = x[:, :3].argmax(1)
m = Net()
o = torch.optim.SGD(m.parameters(), lr=0.5)
for e in range(8):
    loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    print(f"{loss.item():.6f} {m.hidden.grad.norm().item():.6f} {m.norms[-1]:.6f}", tuple(m.hidden.grad.shape))
