"""A penalty on the norm of the parameters' gradient: double backward through averaged gradients."""

# test: right-or-refused=the gradient of a gradient of parameters
import torch
from torch import nn

torch.manual_seed(166)
x = torch.randn(21, 4)
y = x.sum(1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
params = list(model.parameters())
optimizer = torch.optim.SGD(params, lr=0.1)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    penalty = sum(g.pow(2).sum() for g in grads)
    optimizer.zero_grad()
    (loss + 0.1 * penalty).backward()
    optimizer.step()
    print(f"{loss.item():.8f} {penalty.item():.8f} {params[0].grad.norm().item():.8f}")
