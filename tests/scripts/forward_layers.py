"""forward called directly, on models of bare parameters and on layers that are trained one by one."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(a, b) / a**0.5), nn.Parameter(torch.zeros(b))

    def forward(self, x):
        return torch.relu((x / (x.norm(dim=1, keepdim=True) + 1e-4)) @ self.weight + self.bias)


torch.manual_seed(505)
x = torch.randn(22, 6)
layers = [Layer(6, 10), Layer(10, 10)]
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
for step in range(5):
    good, bad = x, x.flip(1)
    for layer, optimizer in zip(layers, optimizers):
        g, b = layer.forward(good).pow(2).mean(1), layer.forward(bad).pow(2).mean(1)
        loss = torch.log(1 + torch.exp(torch.cat([-g + 1, b - 1]))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        good, bad = layer.forward(good).detach(), layer.forward(bad).detach()
        print(f"{step} {loss.item():.8f}")
