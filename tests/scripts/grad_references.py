"""Gradients kept by reference from step to step, reassigned, read before and after zeroing."""

import torch
from torch import nn

torch.manual_seed(133)
x = torch.randn(30, 4)
y = x.sum(1, keepdim=True).tanh()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
before = None
for step in range(8):
    rows = slice(step * 3, step * 3 + 9)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    now = [p.grad for p in model.parameters()]
    if before is not None:
        cosine = (
            sum((a * b).sum() for a, b in zip(now, before))
            / (sum(a.pow(2).sum() for a in now) * sum(b.pow(2).sum() for b in before)).sqrt()
        )
        print(f"{loss.item():.8f} cosine {cosine.item():.7f}")
    before = now
    if step % 2:
        for p in model.parameters():
            p.grad = p.grad * 0.5
    optimizer.step()
model.zero_grad(set_to_none=True)
print([p.grad for p in model.parameters()], f"{before[0].norm().item():.8f}")
