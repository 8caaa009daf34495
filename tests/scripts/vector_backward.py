"""backward(gradient=...), torch.autograd.backward of several, and backward(inputs=...)."""

import torch
from torch import nn

torch.manual_seed(136)
x = torch.randn(19, 4)
y = x.sum(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    optimizer.zero_grad()
    each = (model(x).squeeze(1) - y).pow(2)
    if step % 3 == 0:
        each.backward(gradient=torch.full_like(each, 1 / 19))
    elif step % 3 == 1:
        torch.autograd.backward([each.mean(), 0.01 * each.max()])
    else:
        each.mean().backward(inputs=list(model[2].parameters()))
    norms = [0.0 if p.grad is None else p.grad.norm().item() for p in model.parameters()]
    optimizer.step()
    print(f"{each.mean().item():.8f} {each.max().item():.7f}", " ".join(f"{n:.8f}" for n in norms))
