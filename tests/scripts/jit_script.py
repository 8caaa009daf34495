"""A scripted and a traced model."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 9), nn.Linear(9, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


torch.manual_seed(111)
x = torch.randn(22, 5)
y = x.norm(dim=1, keepdim=True)
for name, model in (("script", torch.jit.script(Net())), ("trace", torch.jit.trace(Net(), x[:3]))):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{name} {loss.item():.8f}")
