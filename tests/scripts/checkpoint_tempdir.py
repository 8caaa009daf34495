"""Checkpoints in a TemporaryDirectory, listed and read back."""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(184)
x = torch.randn(20, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tempfile.TemporaryDirectory() as folder:
    for step in range(4):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.save(model.state_dict(), os.path.join(folder, f"{step}.pt"))
        (Path(folder) / f"{step}.txt").write_text(f"{loss.item():.8f}")
    print(sorted(os.listdir(folder)))
    for path in sorted(Path(folder).glob("*.txt")):
        model.load_state_dict(torch.load(path.with_suffix(".pt")))
        print(path.name, path.read_text(), f"{nn.functional.mse_loss(model(x), y).item():.8f}")
