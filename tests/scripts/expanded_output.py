"""A model returns a parameter as an expanded tensor (stride 0) beside its rows, as gpytorch does."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 1), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.layer(x), self.scale.expand(1)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    rows, scale = model(torch.randn(16, 4))
    loss = rows.pow(2).mean() + scale.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} loss {loss.item():.6f} scale {model.scale.item():.6f}")
