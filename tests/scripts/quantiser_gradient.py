"""Gradients that depend on the number of samples, though outputs do not: a learned quantiser (LSQ) that scales the
gradient of its step by the number of elements, and a Function whose backward takes a norm over the batch."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)


class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Parameter(torch.tensor([0.2]))

    def forward(self, x):
        scaled = self.step / (7 * x.numel()) ** 0.5
        step = (self.step - scaled).detach() + scaled
        x = (x / step).clamp(-8, 7)
        return ((x.round() - x).detach() + x) * step


class Normalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm() + 1e-3)


class Tamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return Normalised.apply(torch.tanh(self.layer(x)))


model = nn.Sequential(nn.Linear(5, 6), Quantiser(), Tamed(), nn.Dropout(0.2), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in (16, 16, 7, 12):
    x = torch.randn(batch, 5)
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    grads = [p.grad.norm().item() for p in model.parameters()]
    print(batch, loss.item(), model[1].step.grad.item(), sum(grads))
