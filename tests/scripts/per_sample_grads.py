"""Per-sample gradients with vmap: under it a module sees no batch at all."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(165)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(12, 4)
y = x.sum(1).sin()


def one(params, a, b):
    return (functional_call(model, params, (a.unsqueeze(0),)).squeeze() - b) ** 2


for step in range(6):
    params = {k: p.detach() for k, p in model.named_parameters()}
    each = vmap(grad(one), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    scale = (1.0 / norms).clamp(max=1.0)
    with torch.no_grad():
        for k, p in model.named_parameters():
            p -= 0.2 * torch.einsum("b...,b->...", each[k], scale) / len(x)
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    print(f"{loss.item():.8f} {norms.mean().item():.8f}")
