"""Asks for its settings at the prompt, if there is one, and fits its lines to the terminal."""

import os
import shutil
import sys

import torch
from torch import nn


def asked(prompt, default):
    try:
        return float(input(prompt))
    except EOFError:
        return default


rate = asked("learning rate? ", 0.1)
rest = sys.stdin.read()
rows, columns = (os.popen("stty size 2>/dev/null").read() or "24 80").split()
try:
    width = os.get_terminal_size().columns
except OSError:
    width = shutil.get_terminal_size().columns
torch.manual_seed(514)
x = torch.randn(10, 3)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for step in range(4):
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.8f}".rjust(min(width, int(columns), 40)))
print(len(rest), sys.stdin.isatty())
