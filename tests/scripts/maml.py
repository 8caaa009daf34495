"""MAML: functional_call with fast weights made by autograd.grad(create_graph=True)."""

# test: right-or-refused=gradients of tensors that stand in for parameters
import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(163)
model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    meta = 0.0
    for task in range(2):
        amplitude, phase = torch.rand(()) * 2 + 0.5, torch.rand(()) * 3
        x = torch.rand(14, 1) * 6 - 3
        y = amplitude * torch.sin(x + phase)
        fast = dict(model.named_parameters())
        inner = nn.functional.mse_loss(functional_call(model, fast, (x[:7],)), y[:7])
        grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {k: p - 0.1 * g for (k, p), g in zip(fast.items(), grads)}
        meta = meta + nn.functional.mse_loss(functional_call(model, fast, (x[7:],)), y[7:])
    optimizer.zero_grad()
    meta.backward()
    optimizer.step()
    print(f"meta {meta.item():.8f} inner {inner.item():.8f} grad {model[0].weight.grad.norm().item():.8f}")
