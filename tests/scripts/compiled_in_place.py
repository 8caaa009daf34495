"""model.compile(), in place, with the eager backend."""

import torch
from torch import nn

torch.manual_seed(109)
x = torch.randn(23, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    rows = slice(step % 3 * 7, step % 3 * 7 + 9)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
