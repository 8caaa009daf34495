"""A thread evaluates the model, while the script trains another one."""

import threading

import torch
from torch import nn

torch.manual_seed(5)
model, teacher = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), nn.Linear(4, 2)
held_out = torch.randn(9, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = []


def evaluate():
    for _ in range(20):
        with torch.no_grad():
            value = teacher(held_out).square().mean().item()
    found.append(value)


for step in range(4):
    thread = threading.Thread(target=evaluate)
    thread.start()
    x = torch.randn(10, 4)
    loss = nn.functional.mse_loss(model(x), teacher(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    thread.join()
    print(f"{loss.item():.8f} {found[-1]:.8f}")
