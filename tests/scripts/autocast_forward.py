"""The model's forward is decorated with autocast itself; gradients are float32; predictions are compared in bf16."""
# test: tolerance=3e-3  a slice's weight gradient is rounded to 8 bits before it is added to the others'

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 1)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.tanh(self.a(x))
        return self.b(h.float())


torch.manual_seed(106)
x = torch.randn(30, 6)
y = x.mean(1, keepdim=True)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(6):
    loss = nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} {net.a.weight.grad.dtype}")
