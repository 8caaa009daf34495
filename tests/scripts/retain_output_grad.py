"""retain_grad on the output and a hook on it: the gradient of the whole batch, with the scale of one process."""

import torch
from torch import nn

torch.manual_seed(217)
x = torch.randn(18, 5)
y = x.sum(1, keepdim=True)
body, head = nn.Sequential(nn.Linear(5, 8), nn.Tanh()), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
norms = []
for step in range(6):
    hidden = body(x)
    hidden.retain_grad()
    hidden.register_hook(lambda g: norms.append(g.norm().item()))
    loss = nn.functional.mse_loss(head(hidden), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {norms[-1]:.8f} {hidden.grad.abs().sum().item():.8f} {tuple(hidden.grad.shape)}")
