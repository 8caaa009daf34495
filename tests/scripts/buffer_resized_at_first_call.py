"""A per-channel observer of torch.ao in short: its buffer is empty, and resized at the first call."""

import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor([]))

    def forward(self, weight):
        if self.low.numel() == 0:
            self.low.resize_(weight.shape[0])
            self.low.copy_(weight.detach().amin(1))
        return weight


class Observed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.observer = nn.Linear(4, 3), Observer()

    def forward(self, x):
        return nn.functional.linear(x, self.observer(self.layer.weight), self.layer.bias)


torch.manual_seed(0)
model = Observed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4)
for step in range(3):
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} low {model.observer.low.sum().item():.6f}")
