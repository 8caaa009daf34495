"""A hook on a parameter clamps its gradient: the global one, not a slice's."""

# test: right-or-refused=the hook sees the gradient before workers' parts are added up
import torch
from torch import nn

torch.manual_seed(130)
x = torch.randn(24, 5)
y = x.pow(3).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(5, 10), nn.ReLU(), nn.Linear(10, 1))
seen = []
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-0.2, 0.2))
model[0].weight.register_hook(lambda grad: seen.append(grad.norm().item()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.7f} seen {seen[-1]:.7f}")
