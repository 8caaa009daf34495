"""Layers kept in a Python list, so the module that holds them has no parameters of its own."""

# test: workers=2
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(5, 7), nn.Linear(7, 1)]

    def forward(self, x):
        return self.layers[1](torch.relu(self.layers[0](x)))


torch.manual_seed(261)
x = torch.randn(17, 5)
y = x.sum(1, keepdim=True)
net = Net()
optimizer = torch.optim.SGD([p for layer in net.layers for p in layer.parameters()], lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {len(list(net.parameters()))}")
