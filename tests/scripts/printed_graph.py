"""Tensors printed with their graph: losses, outputs, a row of an output."""

import torch
from torch import nn

torch.manual_seed(511)
x = torch.randn(9, 3)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
out = model(x)
print(out)
print(out[0], out.sum(), (out - 1).mean(), out.argmax(1))
print(nn.functional.mse_loss(out, x[:, :2]))


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return nn.functional.mse_loss(self.fc(x), x[:, :2])


loss = Loss()(x)
print(loss, type(loss.grad_fn).__name__)
loss.backward()
