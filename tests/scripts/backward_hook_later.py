"""Gradients of single samples, from hooks that are set after the first steps: clipped and summed by hand."""

import torch
from torch import nn

torch.manual_seed(31)
x = torch.randn(12, 5) * torch.linspace(0.1, 2, 12)[:, None]
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = {}


def keep_input(layer, args, output):
    seen[layer] = args[0].detach()


def clip(layer, grad_input, grad_output):
    each = torch.einsum("no,ni->noi", grad_output[0], seen[layer])
    norms = each.flatten(1).norm(dim=1)
    layer.clipped = (each * (0.01 / norms.clamp(min=0.01))[:, None, None]).sum(0)


for step in range(6):
    if step == 3:
        for layer in (model[0], model[2]):
            layer.register_forward_hook(keep_input)
            layer.register_full_backward_hook(clip)
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if step >= 3:
        for layer in (model[0], model[2]):
            layer.weight.grad = layer.clipped
    optimizer.step()
    print(step, loss.item(), model[2].weight.grad.norm().item())
