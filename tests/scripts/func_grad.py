"""torch.func.grad: functional gradients, neither backward() nor autograd.grad()."""

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(164)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
params = {k: p.detach() for k, p in model.named_parameters()}
x = torch.randn(18, 4)
y = x.sum(1, keepdim=True).sin()


def compute(params, a, b):
    return nn.functional.mse_loss(functional_call(model, params, (a,)), b)


for step in range(8):
    grads, loss = grad_and_value(compute)(params, x, y)
    params = {k: p - 0.2 * grads[k] for k, p in params.items()}
    print(f"{loss.item():.8f}")
