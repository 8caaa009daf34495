"""A module that overrides __call__."""

# test: right-or-refused=the module's call isn't torch's
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.outer = nn.Linear(5, 1)
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return self.outer(torch.tanh(self.inner(x)))


torch.manual_seed(72)
x = torch.randn(18, 5)
y = x.max(1, keepdim=True).values
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(10):
    loss = nn.functional.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{loss.item():.8f} after {net.calls} calls")
