"""os.mkdir and os.makedirs without exist_ok: a second worker that makes them too would fail. Also rmtree and Path.mkdir."""

import os
import shutil
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(185)
os.mkdir("out")
os.makedirs("out/a/b")
Path("out/logs").mkdir()
Path("out/logs/run.txt").write_text("started\n")
shutil.rmtree("out/a")
model = nn.Linear(3, 1)
x = torch.randn(12, 3)
for step in range(4):
    loss = model(x).pow(2).mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.2 * p.grad
    with open("out/logs/run.txt", "a") as f:
        f.write(f"{step} {loss.item():.8f}\n")
    print(f"{loss.item():.8f}")
print(sorted(os.listdir("out")), Path("out/logs/run.txt").read_text().split())
