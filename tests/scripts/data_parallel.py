"""nn.DataParallel left in the script, on a machine without GPUs."""

import torch
from torch import nn

torch.manual_seed(113)
model = nn.DataParallel(nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1)))
x = torch.randn(22, 5)
y = x.norm(dim=1, keepdim=True)
optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
for step in range(6):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}")
print(list(model.state_dict())[:2])
