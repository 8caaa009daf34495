"""State kept in memory: deep-copied state_dict, BytesIO, rolled back when the loss got worse."""

import copy
import io

import torch
from torch import nn

torch.manual_seed(183)
x = torch.randn(24, 4)
y = x.pow(2).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
good, best = None, float("inf")
for step in range(12):
    loss = nn.functional.mse_loss(model(x), y)
    if loss.item() < best:
        best, good = loss.item(), (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()))
    elif loss.item() > 1.5 * best:
        model.load_state_dict(good[0])
        optimizer.load_state_dict(good[1])
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
        print(f"step {step}: rolled back, rate {optimizer.param_groups[0]['lr']}")
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: {loss.item():.7f}")
buffer = io.BytesIO()
torch.save(good[0], buffer)
buffer.seek(0)
model.load_state_dict(torch.load(buffer))
print(f"best {best:.7f} again {nn.functional.mse_loss(model(x), y).item():.7f}")
