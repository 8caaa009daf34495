"""Hooks on the node of a model's output, and what a script asks of that node."""
# test: tolerance=1e-9  float64

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(33)
torch.set_default_dtype(torch.float64)
model = nn.Linear(4, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 6, (8,))
for step in range(6):
    out = model(x)
    first = out[:, :3]
    name = out.grad_fn.name() if step % 2 else type(out.grad_fn).__name__
    print(name, out.is_leaf, out.detach().grad_fn, first.grad_fn is None)
    out.grad_fn.register_prehook(lambda grads: tuple(g.clamp(-0.05, 0.05) for g in grads))
    first.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    out.grad_fn.register_hook(lambda inputs, outputs: print("  after", outputs[0].abs().sum().item()))
    loss = F.cross_entropy(out, y) + first.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), [p.grad.norm().item() for p in model.parameters()])
with torch.no_grad():
    print(model(x).grad_fn is None)
