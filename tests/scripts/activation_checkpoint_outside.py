"""The loop itself checkpoints calls of models: their forward is run again in the backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(129)
x = torch.randn(22, 5)
y = x.cumsum(1)[:, 2:3]
body = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh())
head = nn.Linear(10, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for step in range(8):
    if step % 2:
        hidden = checkpoint(body, x, use_reentrant=False)
    else:
        hidden = checkpoint_sequential(body, 2, x, use_reentrant=False)
    loss = nn.functional.mse_loss(head(hidden), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {body[0].weight.grad.norm().item():.8f}")
