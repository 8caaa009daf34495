"""Module hooks on the backward: norms of gradients that flow through an inner layer are printed."""

# test: workers=2
import torch
from torch import nn

torch.manual_seed(265)
x = torch.randn(14, 4) * torch.linspace(0.1, 2, 14)[:, None]
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
norms = []
model[1].register_full_backward_hook(lambda m, gi, go: norms.append(go[0].norm().item()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f} {norms[-1]:.8f}")
