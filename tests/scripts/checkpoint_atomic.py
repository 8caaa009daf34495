"""Checkpoints written to a temporary name and moved into place; old ones removed; the newest found with glob."""

import glob
import os

import torch
from torch import nn

torch.manual_seed(182)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if not os.path.isdir("ckpt"):
    os.mkdir("ckpt")
for step in range(1, 7):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step} {loss.item():.8f}")
    if step % 2 == 0:
        torch.save(model.state_dict(), "ckpt/tmp")
        os.replace("ckpt/tmp", f"ckpt/step{step:04d}.pt")
        for old in sorted(glob.glob("ckpt/step*.pt"))[:-2]:
            os.remove(old)
kept = sorted(os.listdir("ckpt"))
print(kept)
model.load_state_dict(torch.load(os.path.join("ckpt", kept[0]), weights_only=True))
print(f"older: {nn.functional.mse_loss(model(x), y).item():.8f}")
