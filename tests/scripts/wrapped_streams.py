# Libraries (click, Windows fixes for UTF-8) wrap the standard streams in streams of their own.
# test: workers=2

import io
import sys

import torch
from torch import nn

torch.manual_seed(0)
out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", line_buffering=True)
print(sys.stdout.name, sys.stderr.name, sys.stdout.mode, sys.stdout is sys.__stdout__, file=out)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} größer {loss.item():.6f}", file=out)
out.detach()
